"""Data sets: one format on disk (`store`), the public archives it is made from, and what tasks draw from it.

prepare_omniglot(folder, "data/omniglot")       from the published archives
prepare_drawn("data/drawn")                     invented alphabets, where nothing is on disk
alphabets = Alphabets(open_store("data/omniglot"), seed=0)
alphabets["Greek"].train_images                 uint8 [300, 1, 28, 28]
"""

from warpgrad.data.alphabets import (
    AlphabetData,
    AlphabetProtocol,
    Alphabets,
    AlphabetSplit,
    split_alphabets,
    usable_alphabets,
)
from warpgrad.data.archives import Limits, find_archives, open_tree
from warpgrad.data.download import download
from warpgrad.data.drawn import prepare_drawn
from warpgrad.data.header import Header
from warpgrad.data.montage import montage
from warpgrad.data.omniglot import download_omniglot, prepare_omniglot
from warpgrad.data.store import ClassImages, ImageStore, open_store, write
from warpgrad.data.transform import AffineRange, draw_affine, random_affine, to_float, transform

__all__ = [
    "AffineRange",
    "AlphabetData",
    "AlphabetProtocol",
    "AlphabetSplit",
    "Alphabets",
    "ClassImages",
    "Header",
    "ImageStore",
    "Limits",
    "download",
    "download_omniglot",
    "draw_affine",
    "find_archives",
    "montage",
    "open_store",
    "open_tree",
    "prepare_drawn",
    "prepare_omniglot",
    "random_affine",
    "split_alphabets",
    "to_float",
    "transform",
    "usable_alphabets",
    "write",
]
