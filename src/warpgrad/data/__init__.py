"""Data sets: one format on disk (`store`), the public archives it is made from, and the tasks that are drawn from it.

prepare_omniglot(folder, "data/omniglot")       from the published archives
prepare_cifar(folder, "data/cifar-fs")          the same; also FC100, mini- and tieredImageNet
prepare_folder("birds", "data/birds", name="birds", size=84)    a person's own class folders
prepare_drawn("data/drawn")                     invented alphabets, where nothing is on disk
open_prepared("cifar-fs").split("test")         the classes to meta-test on
alphabets = Alphabets(open_store("data/omniglot"), seed=0)
alphabets["Greek"].train_images                 uint8 [300, 1, 28, 28]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warpgrad.lazy import exports

if TYPE_CHECKING:
    from warpgrad.data.archives import Limits, find_archives, open_tree
    from warpgrad.data.drawn.alphabets import prepare_drawn
    from warpgrad.data.pictures import montage
    from warpgrad.data.prepared import data_name, open_prepared
    from warpgrad.data.sources.cifar import CIFAR_FS, FC100, CifarSplits, prepare_cifar
    from warpgrad.data.sources.folders import prepare_folder
    from warpgrad.data.sources.mini_imagenet import prepare_mini_imagenet
    from warpgrad.data.sources.omniglot import download_omniglot, prepare_omniglot, prepare_omniglot_few_shot
    from warpgrad.data.sources.text import Fields, LabelledText, open_text, prepare_clinc, prepare_text
    from warpgrad.data.sources.tiered_imagenet import prepare_tiered_imagenet
    from warpgrad.data.store import Header, ImageStore, open_store
    from warpgrad.data.tasks.alphabets import (
        AlphabetData,
        AlphabetProtocol,
        Alphabets,
        AlphabetSplit,
        split_alphabets,
        usable_alphabets,
    )
    from warpgrad.data.transform import AffineRange, draw_affine, random_affine, to_float
    from warpgrad.data.writing import ClassImages, write

__getattr__, __dir__ = exports(
    globals(),
    {
        "warpgrad.data.archives": "Limits find_archives open_tree",
        "warpgrad.data.drawn.alphabets": "prepare_drawn",
        "warpgrad.data.pictures": "montage",
        "warpgrad.data.prepared": "data_name open_prepared",
        "warpgrad.data.sources.cifar": "CIFAR_FS FC100 CifarSplits prepare_cifar",
        "warpgrad.data.sources.folders": "prepare_folder",
        "warpgrad.data.sources.mini_imagenet": "prepare_mini_imagenet",
        "warpgrad.data.sources.omniglot": "download_omniglot prepare_omniglot prepare_omniglot_few_shot",
        "warpgrad.data.sources.text": "Fields LabelledText open_text prepare_clinc prepare_text",
        "warpgrad.data.sources.tiered_imagenet": "prepare_tiered_imagenet",
        "warpgrad.data.store": "Header ImageStore open_store",
        "warpgrad.data.tasks.alphabets": "AlphabetData AlphabetProtocol Alphabets "
        "AlphabetSplit split_alphabets usable_alphabets",
        "warpgrad.data.transform": "AffineRange draw_affine random_affine to_float",
        "warpgrad.data.writing": "ClassImages write",
    },
)

__all__ = [
    "CIFAR_FS",
    "FC100",
    "AffineRange",
    "AlphabetData",
    "AlphabetProtocol",
    "AlphabetSplit",
    "Alphabets",
    "CifarSplits",
    "ClassImages",
    "Fields",
    "Header",
    "ImageStore",
    "LabelledText",
    "Limits",
    "data_name",
    "download_omniglot",
    "draw_affine",
    "find_archives",
    "montage",
    "open_prepared",
    "open_store",
    "open_text",
    "open_tree",
    "prepare_cifar",
    "prepare_clinc",
    "prepare_drawn",
    "prepare_folder",
    "prepare_mini_imagenet",
    "prepare_omniglot",
    "prepare_omniglot_few_shot",
    "prepare_text",
    "prepare_tiered_imagenet",
    "random_affine",
    "split_alphabets",
    "to_float",
    "usable_alphabets",
    "write",
]
