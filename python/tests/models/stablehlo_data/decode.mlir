module @jit_decode attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16x16xf32> loc("p['k']"), %arg1: tensor<16x16xf32> loc("p['q']"), %arg2: tensor<16x16xf32> loc("p['v']"), %arg3: tensor<32x16xf32> loc("p['wte']"), %arg4: tensor<4x8x4x4xf32> loc("cache[0]"), %arg5: tensor<4x8x4x4xf32> loc("cache[1]"), %arg6: tensor<4xi32> loc("token"), %arg7: tensor<i32> loc("place")) -> (tensor<4x32xf32> {jax.result_info = "result[0]"}, tensor<4x8x4x4xf32> {jax.result_info = "result[1]"}, tensor<4x8x4x4xf32> {jax.result_info = "result[2]"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4xi32>
    %1 = stablehlo.compare LT, %arg6, %0, SIGNED : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4xi32>
    %3 = stablehlo.add %arg6, %2 : tensor<4xi32>
    %4 = stablehlo.select %1, %3, %arg6 : tensor<4xi1>, tensor<4xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0] : (tensor<4xi32>) -> tensor<4x1xi32>
    %6 = "stablehlo.gather"(%arg3, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xf32>, tensor<4x1xi32>) -> tensor<4x16xf32>
    %7 = stablehlo.broadcast_in_dim %6, dims = [0, 2] : (tensor<4x16xf32>) -> tensor<4x1x16xf32>
    %8 = stablehlo.dot_general %7, %arg1, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x1x16xf32>, tensor<16x16xf32>) -> tensor<4x1x16xf32>
    %9 = stablehlo.reshape %8 : (tensor<4x1x16xf32>) -> tensor<4x1x4x4xf32>
    %10 = stablehlo.dot_general %7, %arg0, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x1x16xf32>, tensor<16x16xf32>) -> tensor<4x1x16xf32>
    %11 = stablehlo.reshape %10 : (tensor<4x1x16xf32>) -> tensor<4x1x4x4xf32>
    %12 = stablehlo.dot_general %7, %arg2, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x1x16xf32>, tensor<16x16xf32>) -> tensor<4x1x16xf32>
    %13 = stablehlo.reshape %12 : (tensor<4x1x16xf32>) -> tensor<4x1x4x4xf32>
    %c_1 = stablehlo.constant dense<0> : tensor<i32>
    %14 = stablehlo.compare LT, %arg7, %c_1, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_2 = stablehlo.constant dense<8> : tensor<i32>
    %15 = stablehlo.add %arg7, %c_2 : tensor<i32>
    %16 = stablehlo.select %14, %15, %arg7 : tensor<i1>, tensor<i32>
    %c_3 = stablehlo.constant dense<0> : tensor<i32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %c_5 = stablehlo.constant dense<0> : tensor<i32>
    %17 = stablehlo.dynamic_update_slice %arg4, %11, %c_3, %16, %c_4, %c_5 : (tensor<4x8x4x4xf32>, tensor<4x1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x8x4x4xf32>
    %c_6 = stablehlo.constant dense<0> : tensor<i32>
    %18 = stablehlo.compare LT, %arg7, %c_6, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %c_7 = stablehlo.constant dense<8> : tensor<i32>
    %19 = stablehlo.add %arg7, %c_7 : tensor<i32>
    %20 = stablehlo.select %18, %19, %arg7 : tensor<i1>, tensor<i32>
    %c_8 = stablehlo.constant dense<0> : tensor<i32>
    %c_9 = stablehlo.constant dense<0> : tensor<i32>
    %c_10 = stablehlo.constant dense<0> : tensor<i32>
    %21 = stablehlo.dynamic_update_slice %arg5, %13, %c_8, %20, %c_9, %c_10 : (tensor<4x8x4x4xf32>, tensor<4x1x4x4xf32>, tensor<i32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<4x8x4x4xf32>
    %22 = stablehlo.dot_general %9, %17, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x1x4x4xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x1x8xf32>
    %23 = stablehlo.iota dim = 0 : tensor<8xi32>
    %24 = stablehlo.broadcast_in_dim %arg7, dims = [] : (tensor<i32>) -> tensor<8xi32>
    %25 = stablehlo.compare LE, %23, %24, SIGNED : (tensor<8xi32>, tensor<8xi32>) -> tensor<8xi1>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %26 = call @_where(%25, %22, %cst) : (tensor<8xi1>, tensor<4x4x1x8xf32>, tensor<f32>) -> tensor<4x4x1x8xf32>
    %cst_11 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %27 = stablehlo.reduce(%26 init: %cst_11) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x1x8xf32>, tensor<f32>) -> tensor<4x4x1xf32>
    %cst_12 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<4x4x1xf32>
    %29 = stablehlo.maximum %28, %27 : tensor<4x4x1xf32>
    %30 = stablehlo.broadcast_in_dim %29, dims = [0, 1, 2] : (tensor<4x4x1xf32>) -> tensor<4x4x1x1xf32>
    %31 = stablehlo.broadcast_in_dim %30, dims = [0, 1, 2, 3] : (tensor<4x4x1x1xf32>) -> tensor<4x4x1x8xf32>
    %32 = stablehlo.subtract %26, %31 : tensor<4x4x1x8xf32>
    %33 = stablehlo.exponential %32 : tensor<4x4x1x8xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %34 = stablehlo.reduce(%33 init: %cst_13) applies stablehlo.add across dimensions = [3] : (tensor<4x4x1x8xf32>, tensor<f32>) -> tensor<4x4x1xf32>
    %35 = stablehlo.broadcast_in_dim %34, dims = [0, 1, 2] : (tensor<4x4x1xf32>) -> tensor<4x4x1x1xf32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2, 3] : (tensor<4x4x1x1xf32>) -> tensor<4x4x1x8xf32>
    %37 = stablehlo.divide %33, %36 : tensor<4x4x1x8xf32>
    %38 = stablehlo.dot_general %21, %37, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x4x1x8xf32>) -> tensor<4x4x4x1xf32>
    %39 = stablehlo.transpose %38, dims = [0, 3, 1, 2] : (tensor<4x4x4x1xf32>) -> tensor<4x1x4x4xf32>
    %40 = stablehlo.reshape %39 : (tensor<4x1x4x4xf32>) -> tensor<4x16xf32>
    %41 = stablehlo.transpose %arg3, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %42 = stablehlo.dot_general %40, %41, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x16xf32>, tensor<16x32xf32>) -> tensor<4x32xf32>
    return %42, %17, %21 : tensor<4x32xf32>, tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>
  }
  func.func private @_where(%arg0: tensor<8xi1>, %arg1: tensor<4x4x1x8xf32>, %arg2: tensor<f32>) -> tensor<4x4x1x8xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [3] : (tensor<8xi1>) -> tensor<4x4x1x8xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x4x1x8xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<4x4x1x8xi1>, tensor<4x4x1x8xf32>
    return %3 : tensor<4x4x1x8xf32>
  }
}
