// Tensors of Metal 4 in memory, and the product of two of them by MetalPerformancePrimitives.
//
// Facts are those of Apple's headers: the operand types that a product accepts, the order of its
// parameters, extents as columns and then rows, and elements that a thread may hold or not. The
// product is plain: a thread sums its own elements in the order of k, so that each load is checked.
// Whatever Apple leaves open is unfavourable here. Elements of absent rows and columns are NaN, as
// are new cooperative tensors, and the last element of a thread is not valid.
//
// A descriptor is a number, and its name both a function and a struct, since C++17 has no template
// parameters of class type.
#pragma once
#pragma GCC system_header
#ifdef MSL_TENSORS

namespace metal {
constexpr constant size_t dynamic_extent = ~(size_t) 0;

struct tensor_inline {};
struct tensor_handle {};

// Columns and rows of a tensor.
template<class I, size_t C, size_t R> struct extents {
    I n[2];
    extents() : n{ (I) C, (I) R } { static_assert(C != ~(size_t) 0 && R != ~(size_t) 0, "dynamic extents need values"); }
    extents(I columns, I rows) : n{ columns, rows } { static_assert(C == ~(size_t) 0 && R == ~(size_t) 0, "static extents have values"); }
    I extent(size_t i) const { return n[i]; }
};
template<class I, size_t RANK> struct msl_dynamic {
    static_assert(RANK == 2, "the emulator has tensors of two dimensions");
    typedef extents<I, ~(size_t) 0, ~(size_t) 0> type;
};
template<class I, size_t RANK> using dextents = typename msl_dynamic<I, RANK>::type;

// The type of an element without its address space: a variable's type has one, `thread`. `const`
// stays, since no product accepts it.
template<class T> using msl_element_t = typename remove_addrspace<T>::type;

template<class E, class X, class KIND = tensor_handle> struct tensor {
    static_assert(is_same<KIND, tensor_inline>::value, "the emulator has tensors that a kernel makes of pointers");
    typedef E element_type;
    typedef msl_element_t<E> value_type;
    E * data;
    X size;
    long stride;
    tensor(E * p, X n) : data(p), size(n), stride(n.extent(0)) {}
    template<class I> tensor(E * p, X n, array<I, 2> strides, MSL_SITE) : data(p), size(n), stride(strides[1]) {
        MSL_HERE;
        if (strides[0] != 1) msl_undefined("a tensor whose neighbouring columns are apart", &site);
    }
    tensor slice(int column, int row) const { return tensor(data + row * stride + column, X(size.extent(0) - column, size.extent(1) - row), array<long, 2>{ 1, stride }); }
};
template<class E, class X> tensor(E *, X) -> tensor<E, X, tensor_inline>;
template<class E, class X, class I> tensor(E *, X, array<I, 2>) -> tensor<E, X, tensor_inline>;

template<size_t N> struct execution_simdgroups {
    static_assert(N > 0, "a scope of no SIMD-groups");
    enum { size = N };
};
typedef execution_simdgroups<1> execution_simdgroup;
}

namespace mpp {
namespace tensor_ops {
struct matmul2d_descriptor {
    enum class mode { multiply, multiply_accumulate };
};
// Bits: 16 each of m, n and k (0: dynamic), then transpose_left, transpose_right,
// relaxed_precision, accumulation.
constexpr unsigned long matmul2d_descriptor(int m, int n, int k = (int) ~(size_t) 0, bool transpose_left = false, bool transpose_right = false, bool relaxed = false,
                                            enum matmul2d_descriptor::mode mode = matmul2d_descriptor::mode::multiply) {
    return (unsigned long) m | (unsigned long) n << 16 | (unsigned long) (k < 0 ? 0 : k) << 32 | (unsigned long) transpose_left << 48 |
           (unsigned long) transpose_right << 49 | (unsigned long) relaxed << 50 | (unsigned long) (mode == matmul2d_descriptor::mode::multiply_accumulate) << 51;
}

// Types of left, right and destination that have a product.
template<class L, class R, class D> struct msl_has_product : metal::false_type {};
#define MSL_PRODUCT(L, R, D) template<> struct msl_has_product<L, R, D> : metal::true_type {};
#define MSL_PRODUCT_2(L, R, D) MSL_PRODUCT(L, R, D) MSL_PRODUCT(R, L, D)
#define MSL_PRODUCTS_BYTE(B) \
    MSL_PRODUCT_2(half, B, half) MSL_PRODUCT_2(half, B, float) MSL_PRODUCT_2(float, B, float) MSL_PRODUCT_2(bfloat, B, bfloat) MSL_PRODUCT_2(bfloat, B, float) \
    MSL_PRODUCT(B, B, int)
MSL_PRODUCT(half, half, half) MSL_PRODUCT(half, half, float) MSL_PRODUCT_2(half, float, float) MSL_PRODUCT(float, float, float)
MSL_PRODUCT(bfloat, bfloat, bfloat) MSL_PRODUCT(bfloat, bfloat, float) MSL_PRODUCT_2(bfloat, float, float)
MSL_PRODUCT_2(bfloat, half, bfloat) MSL_PRODUCT_2(bfloat, half, half) MSL_PRODUCT_2(bfloat, half, float)
MSL_PRODUCTS_BYTE(int8_t) MSL_PRODUCTS_BYTE(uint8_t)

// An operand. Relaxed precision leaves a float 10 bits after the point.
template<bool RELAXED, class T> MSL_INLINE float msl_operand(T v) { return (float) v; }
template<> MSL_INLINE float msl_operand<true, float>(float v) {
    const uint bits = as_type<uint>(v);
    return (bits >> 23 & 255) == 255 ? v : as_type<float>((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}

// A destination of M rows and N columns that the threads of a scope hold together.
template<class T, class OP, class L, class R> struct msl_destination {
    enum { M = OP::M, N = OP::N, THREADS = 32 * OP::SIMDGROUPS, USED = (M * N + THREADS - 1) / THREADS };
    typedef metal::msl_element_t<L> left_type;
    typedef metal::msl_element_t<R> right_type;
    typedef T value_type;
    T held[USED + 1];
    uint thread_in_scope;
    msl_destination() : thread_in_scope(msl_tensor_thread(OP::SIMDGROUPS)) {
        for (int i = 0; i <= USED; i++) held[i] = (T) (metal::is_integral<T>::value ? 0x7fff : NAN);
    }
    int row(int i) const { return (i * THREADS + (int) thread_in_scope) / N; }
    int column(int i) const { return (i * THREADS + (int) thread_in_scope) % N; }
    ushort get_capacity() const { return USED + 1; }
    bool is_valid_element(ushort i) const { return i < USED && row(i) < M; }
    metal::array<int, 2> get_multidimensional_index(ushort i) const { return metal::array<int, 2>{ column(i), row(i) }; }
    thread T & operator[](ushort i) thread { return held[i]; }
    template<class E, class X> bool is_in(int i, const thread metal::tensor<E, X, metal::tensor_inline> & t) const {
        static_assert(metal::is_same<metal::msl_element_t<E>, T>::value, "a cooperative tensor and memory of one type");
        return is_valid_element((ushort) i) && row(i) < t.size.extent(1) && column(i) < t.size.extent(0);
    }
    template<class E, class X> void load(const thread metal::tensor<E, X, metal::tensor_inline> & from) {
        for (int i = 0; i < USED; i++)
            if (is_in(i, from)) held[i] = from.data[row(i) * from.stride + column(i)];
    }
    template<class E, class X> void store(const thread metal::tensor<E, X, metal::tensor_inline> & to) const {
        for (int i = 0; i < USED; i++)
            if (is_in(i, to)) to.data[row(i) * to.stride + column(i)] = held[i];
    }
};

template<unsigned long DESCRIPTOR, class SCOPE> struct matmul2d {
    enum {
        M = (int) (DESCRIPTOR & 0xffff), N = (int) (DESCRIPTOR >> 16 & 0xffff), K = (int) (DESCRIPTOR >> 32 & 0xffff),
        LEFT = (int) (DESCRIPTOR >> 48 & 1), RIGHT = (int) (DESCRIPTOR >> 49 & 1), RELAXED = (int) (DESCRIPTOR >> 50 & 1), ADDS = (int) (DESCRIPTOR >> 51 & 1),
        SIMDGROUPS = SCOPE::size,
    };
    static_assert(M > 0 && N > 0 && M % 16 == 0 && N % 16 == 0, "m and n are multiples of 16");

    template<class L, class R, class T> msl_destination<T, matmul2d, L, R> get_destination_cooperative_tensor() const {
        static_assert(msl_has_product<typename metal::msl_element_t<L>::value_type, typename metal::msl_element_t<R>::value_type, T>::value, "no product of operands of these types");
        return msl_destination<T, matmul2d, L, R>();
    }

    // destination = left * right, or with accumulation += left * right.
    template<class L, class R, class D> void run(thread L & left, thread R & right, thread D & destination, MSL_SITE) const {
        static_assert(metal::is_same<L, typename D::left_type>::value && metal::is_same<R, typename D::right_type>::value,
                      "Input types must match cooperative tensor types");
        typedef metal::conditional_t<metal::is_same<typename D::value_type, int>::value, int, float> Sum;
        MSL_HERE;
        msl_tensor(SIMDGROUPS, &site);
        const int rows = left.size.extent(1 - LEFT), columns = right.size.extent(RIGHT), n = left.size.extent(LEFT);
        if (n != right.size.extent(1 - RIGHT)) msl_undefined("a product of tensors whose inner extents differ", &site);
        if (K != 0 && n < K) msl_undefined("a product of tensors that are shorter than its k", &site);
        Sum sums[D::USED];
        for (int i = 0; i < D::USED; i++) sums[i] = 0;
        for (int k = 0; k < (K != 0 ? K : n); k++) {
            int last = -1;
            Sum b = 0;
            for (int i = 0; i < D::USED; i++) {
                const int row = destination.row(i), column = destination.column(i);
                if (row >= M || row >= rows || column >= columns) continue;
                if (column != last) b = (Sum) msl_operand<RELAXED != 0>((typename R::value_type) right.data[RIGHT ? column * right.stride + k : k * right.stride + column]);
                last = column;
                sums[i] += (Sum) msl_operand<RELAXED != 0>((typename L::value_type) left.data[LEFT ? k * left.stride + row : row * left.stride + k]) * b;
            }
        }
        for (int i = 0; i < D::USED; i++) {
            const bool is_present = destination.row(i) < rows && destination.column(i) < columns;
            if (!is_present) destination.held[i] = (typename D::value_type) (metal::is_integral<typename D::value_type>::value ? 0x7fff : NAN);
            else destination.held[i] = (typename D::value_type) (ADDS ? (Sum) destination.held[i] + sums[i] : sums[i]);
        }
    }
};
}
}
#endif
