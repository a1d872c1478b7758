// Products of small matrices, for compiled steps: C = alpha A B + beta D, one for each matrix of a stack.
//
// A library for large matrices copies both factors into an order of its own before it multiplies, and looks up which
// of its kernels suits the processor. Where a factor has a few hundred rows and lies in the cache, that takes as long
// as the product. Here a tile of C is kept in registers, A is read where it lies, and B too, unless its columns are
// not next to each other. The order of every sum depends on the shapes alone.

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace {

#if defined(__AVX512F__)
constexpr int BYTES = 64, ROWS = 8, VECTORS = 3;
#elif defined(__AVX__)
constexpr int BYTES = 32, ROWS = 4, VECTORS = 3;
#else
constexpr int BYTES = 16, ROWS = 4, VECTORS = 2;
#endif
// A tile has at most ROWS rows of VECTORS vectors of BYTES bytes: as many as the processor has registers for.

template <typename T>
struct Lanes {
  typedef T Vector __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
};
template <typename T>
using Vector = typename Lanes<T>::Vector;
template <typename T>
constexpr int64_t WIDTH = BYTES / sizeof(T);

template <typename T>
struct Matrix {
  T* data;
  int64_t row, column;  // strides
  Matrix at(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
  T& operator()(int64_t i, int64_t j) const { return data[i * row + j * column]; }
  Vector<T>& vector(int64_t i, int64_t place) const {
    return *reinterpret_cast<Vector<T>*>(data + i * row + place * WIDTH<T>);
  }
};

template <typename T>
struct Product {
  int64_t inner;
  T alpha, beta;
};

// R rows and V vectors of C; D is left out where it has no data.
template <typename T, int R, int V>
void tile(const Product<T>& product, Matrix<T> a, Matrix<T> b, Matrix<T> d, Matrix<T> c) {
  Vector<T> sum[R][V] = {};
  for (int64_t k = 0; k < product.inner; ++k) {
    Vector<T> right[V];
#pragma GCC unroll 4
    for (int place = 0; place < V; ++place) right[place] = b.vector(k, place);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vector<T> left = a(i, k) - Vector<T>{};
#pragma GCC unroll 4
      for (int place = 0; place < V; ++place) sum[i][place] += left * right[place];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
    for (int place = 0; place < V; ++place) {
      Vector<T> value = product.alpha * sum[i][place];
      if (d.data != nullptr) value += product.beta * d.vector(i, place);
      c.vector(i, place) = value;
    }
}

template <typename T, int V, int R = ROWS>
void tile_of(int64_t rows, const Product<T>& product, Matrix<T> a, Matrix<T> b, Matrix<T> d, Matrix<T> c) {
  if constexpr (R > 0) {
    if (rows == R)
      tile<T, R, V>(product, a, b, d, c);
    else
      tile_of<T, V, R - 1>(rows, product, a, b, d, c);
  }
}

// V vectors of all rows, in tiles of about equal height.
template <typename T, int V = VECTORS>
void panel(int64_t rows, int64_t vectors, const Product<T>& product, Matrix<T> a, Matrix<T> b, Matrix<T> d,
           Matrix<T> c) {
  if constexpr (V > 0) {
    if (vectors < V) return panel<T, V - 1>(rows, vectors, product, a, b, d, c);
    const int64_t tiles = (rows + ROWS - 1) / ROWS;
    for (int64_t one = 0; one < tiles; ++one) {
      const int64_t begin = one * rows / tiles, end = (one + 1) * rows / tiles;
      const Matrix<T> added = d.data == nullptr ? d : d.at(begin, 0);
      tile_of<T, V>(end - begin, product, a.at(begin, 0), b, added, c.at(begin, 0));
    }
  }
}

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define TRANSPOSES_IN_REGISTERS
#endif
#endif

#if defined(TRANSPOSES_IN_REGISTERS)
template <typename T, int64_t HALF, std::size_t... LANE>
void exchange(Vector<T>& first, Vector<T>& second, std::index_sequence<LANE...>) {
  constexpr int64_t width = WIDTH<T>;
  const Vector<T> a = first, b = second;
  first = __builtin_shufflevector(a, b, (LANE & HALF ? width + int64_t(LANE) - HALF : int64_t(LANE))...);
  second = __builtin_shufflevector(a, b, (LANE & HALF ? width + int64_t(LANE) : int64_t(LANE) + HALF)...);
}

template <typename T, int64_t HALF = WIDTH<T> / 2>
void transpose(Vector<T> (&block)[WIDTH<T>]) {
  if constexpr (HALF > 0) {
#pragma GCC unroll 16
    for (int64_t i = 0; i < WIDTH<T>; ++i)
      if ((i & HALF) == 0) exchange<T, HALF>(block[i], block[i + HALF], std::make_index_sequence<WIDTH<T>>());
    transpose<T, HALF / 2>(block);
  }
}
#endif

// Columns of B next to each other, `width` of them, zero where B has no more.
template <typename T>
void pack(Matrix<T> b, int64_t inner, int64_t columns, int64_t width, T* into) {
  for (int64_t place = 0; place < width; place += WIDTH<T>) {
    int64_t k = 0;
#if defined(TRANSPOSES_IN_REGISTERS)
    if (b.row == 1 && columns - place >= WIDTH<T>)
      for (; k + WIDTH<T> <= inner; k += WIDTH<T>) {
        Vector<T> block[WIDTH<T>];
        for (int64_t j = 0; j < WIDTH<T>; ++j) block[j] = *reinterpret_cast<Vector<T>*>(&b(k, place + j));
        transpose<T>(block);
        for (int64_t j = 0; j < WIDTH<T>; ++j) *reinterpret_cast<Vector<T>*>(into + (k + j) * width + place) = block[j];
      }
#endif
    for (; k < inner; ++k)
      for (int64_t j = place; j < place + WIDTH<T>; ++j) into[k * width + j] = j < columns ? b(k, j) : T(0);
  }
}

template <typename T>
void multiply(int64_t rows, int64_t columns, const Product<T>& product, Matrix<T> a, Matrix<T> b, Matrix<T> d,
              Matrix<T> c) {
  thread_local std::vector<T> packed, ragged;
  if (d.data != nullptr && d.column != 1) {
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) c(i, j) = d(i, j);
    d = c;
  }
  packed.resize(product.inner * VECTORS * WIDTH<T>);
  const int64_t whole = columns / WIDTH<T>, panels = (whole + VECTORS - 1) / VECTORS;
  for (int64_t one = 0; one < panels; ++one) {
    const int64_t begin = one * whole / panels, vectors = (one + 1) * whole / panels - begin;
    const int64_t column = begin * WIDTH<T>, width = vectors * WIDTH<T>;
    Matrix<T> right = b.at(0, column);
    if (b.column != 1) {
      pack(right, product.inner, width, width, packed.data());
      right = {packed.data(), width, 1};
    }
    panel<T>(rows, vectors, product, a, right, d.data == nullptr ? d : d.at(0, column), c.at(0, column));
  }
  const int64_t first = whole * WIDTH<T>, rest = columns - first;
  if (rest == 0) return;
  ragged.resize(rows * WIDTH<T>);
  pack(b.at(0, first), product.inner, rest, WIDTH<T>, packed.data());
  const Matrix<T> right{packed.data(), WIDTH<T>, 1}, found{ragged.data(), WIDTH<T>, 1}, nothing{nullptr, 0, 0};
  panel<T>(rows, 1, product, a, right, nothing, found);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < rest; ++j)
      c(i, first + j) = found(i, j) + (d.data == nullptr ? T(0) : product.beta * d(i, first + j));
}

#define CHECK(call) \
  if (const AOTITorchError error = (call); error != AOTI_TORCH_SUCCESS) return error

// A tensor of two or three dimensions as a stack of matrices.
struct Stack {
  void* data = nullptr;
  int64_t *sizes = nullptr, *strides = nullptr, dims = 0;

  AOTITorchError read(AtenTensorHandle tensor) {
    CHECK(aoti_torch_get_data_ptr(tensor, &data));
    CHECK(aoti_torch_get_sizes(tensor, &sizes));
    CHECK(aoti_torch_get_strides(tensor, &strides));
    return aoti_torch_get_dim(tensor, &dims);
  }
  int64_t size(int64_t from_last) const { return sizes[dims - from_last]; }
  template <typename T>
  Matrix<T> matrix(int64_t place) const {
    if (data == nullptr) return {nullptr, 0, 0};
    const int64_t offset = dims == 3 ? place * strides[0] : 0;
    return {static_cast<T*>(data) + offset, strides[dims - 2], strides[dims - 1]};
  }
};

template <typename T>
void multiply_all(const Stack& d, const Stack& a, const Stack& b, const Stack& c, double beta, double alpha) {
  const Product<T> product{a.size(1), static_cast<T>(alpha), static_cast<T>(beta)};
  for (int64_t place = 0; place < (c.dims == 3 ? c.sizes[0] : 1); ++place)
    multiply<T>(c.size(2), c.size(1), product, a.matrix<T>(place), b.matrix<T>(place), d.matrix<T>(place),
                c.matrix<T>(place));
}

AOTITorchError small_product(AtenTensorHandle added, AtenTensorHandle left, AtenTensorHandle right, double beta,
                             double alpha, AtenTensorHandle* result) {
  Stack d, a, b, c;
  if (added != nullptr) CHECK(d.read(added));
  CHECK(a.read(left));
  CHECK(b.read(right));
  const int64_t rows = a.size(2), columns = b.size(1);
  const int64_t sizes[] = {a.sizes[0], rows, columns}, strides[] = {rows * columns, columns, 1};
  const int64_t skipped = 3 - a.dims;
  int32_t dtype;
  CHECK(aoti_torch_get_dtype(left, &dtype));
  CHECK(aoti_torch_empty_strided(a.dims, sizes + skipped, strides + skipped, dtype, aoti_torch_device_type_cpu(), 0,
                                 result));
  CHECK(c.read(*result));
  if (dtype == aoti_torch_dtype_float32())
    multiply_all<float>(d, a, b, c, beta, alpha);
  else if (dtype == aoti_torch_dtype_float64())
    multiply_all<double>(d, a, b, c, beta, alpha);
  else
    return AOTI_TORCH_FAILURE;
  return AOTI_TORCH_SUCCESS;
}

}  // namespace

extern "C" {

AOTITorchError aoti_torch_cpu_small_product(AtenTensorHandle left, AtenTensorHandle right, AtenTensorHandle* result) {
  return small_product(nullptr, left, right, 0, 1, result);
}

AOTITorchError aoti_torch_cpu_small_product_added(AtenTensorHandle added, AtenTensorHandle left,
                                                  AtenTensorHandle right, double beta, double alpha,
                                                  AtenTensorHandle* result) {
  return small_product(added, left, right, beta, alpha, result);
}
}
