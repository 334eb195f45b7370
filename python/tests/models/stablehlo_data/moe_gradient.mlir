module @jit__gradient attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16x4xf32> loc("p['r']"), %arg1: tensor<4x16x24xf32> loc("p['w1']"), %arg2: tensor<4x24x16xf32> loc("p['w2']"), %arg3: tensor<16x16xf32> loc("data[0]")) -> (tensor<f32> {jax.result_info = "result[0]"}, tensor<16x4xf32> {jax.result_info = "result[1]['r']"}, tensor<4x16x24xf32> {jax.result_info = "result[1]['w1']"}, tensor<4x24x16xf32> {jax.result_info = "result[1]['w2']"}) {
    %0 = stablehlo.dot_general %arg3, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x16xf32>, tensor<16x4xf32>) -> tensor<16x4xf32>
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.maximum across dimensions = [1] : (tensor<16x4xf32>, tensor<f32>) -> tensor<16xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<16xf32>
    %3 = stablehlo.maximum %2, %1 : tensor<16xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0] : (tensor<16xf32>) -> tensor<16x1xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x4xf32>
    %6 = stablehlo.subtract %0, %5 : tensor<16x4xf32>
    %7 = stablehlo.exponential %6 : tensor<16x4xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.reduce(%7 init: %cst_1) applies stablehlo.add across dimensions = [1] : (tensor<16x4xf32>, tensor<f32>) -> tensor<16xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0] : (tensor<16xf32>) -> tensor<16x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x4xf32>
    %11 = stablehlo.divide %7, %10 : tensor<16x4xf32>
    %12 = stablehlo.multiply %9, %9 : tensor<16x1xf32>
    %cst_2 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<16x1xf32>
    %14 = stablehlo.divide %13, %12 : tensor<16x1xf32>
    %values, %indices = chlo.top_k(%11, k = 2) : tensor<16x4xf32> -> (tensor<16x2xf32>, tensor<16x2xi32>)
    %15 = stablehlo.reshape %indices : (tensor<16x2xi32>) -> tensor<16x2x1xi32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %16 = stablehlo.reduce(%values init: %cst_3) applies stablehlo.add across dimensions = [1] : (tensor<16x2xf32>, tensor<f32>) -> tensor<16xf32>
    %17 = stablehlo.broadcast_in_dim %16, dims = [0] : (tensor<16xf32>) -> tensor<16x1xf32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x2xf32>
    %19 = stablehlo.divide %values, %18 : tensor<16x2xf32>
    %20 = stablehlo.multiply %17, %17 : tensor<16x1xf32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<16x1xf32>
    %22 = stablehlo.divide %21, %20 : tensor<16x1xf32>
    %23 = call @_one_hot(%indices) : (tensor<16x2xi32>) -> tensor<16x2x4xf32>
    %24 = stablehlo.reshape %23 : (tensor<16x2x4xf32>) -> tensor<32x4xf32>
    %25 = call @cumsum(%24) : (tensor<32x4xf32>) -> tensor<32x4xf32>
    %26 = stablehlo.reshape %25 : (tensor<32x4xf32>) -> tensor<16x2x4xf32>
    %27 = stablehlo.multiply %26, %23 : tensor<16x2x4xf32>
    %cst_5 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %28 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<16x2x4xf32>
    %29 = stablehlo.subtract %27, %28 : tensor<16x2x4xf32>
    %30 = stablehlo.convert %29 : (tensor<16x2x4xf32>) -> tensor<16x2x4xi32>
    %31 = call @_one_hot_1(%30) : (tensor<16x2x4xi32>) -> tensor<16x2x4x8xf32>
    %32 = stablehlo.broadcast_in_dim %23, dims = [0, 1, 2] : (tensor<16x2x4xf32>) -> tensor<16x2x4x1xf32>
    %33 = stablehlo.broadcast_in_dim %32, dims = [0, 1, 2, 3] : (tensor<16x2x4x1xf32>) -> tensor<16x2x4x8xf32>
    %34 = stablehlo.multiply %31, %33 : tensor<16x2x4x8xf32>
    %35 = stablehlo.dot_general %19, %34, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<16x2xf32>, tensor<16x2x4x8xf32>) -> tensor<16x4x8xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %36 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<16x4x8xf32>
    %37 = stablehlo.compare GT, %35, %36, FLOAT : (tensor<16x4x8xf32>, tensor<16x4x8xf32>) -> tensor<16x4x8xi1>
    %38 = stablehlo.convert %37 : (tensor<16x4x8xi1>) -> tensor<16x4x8xf32>
    %39 = stablehlo.dot_general %38, %arg3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x4x8xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %40 = stablehlo.dot_general %39, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x16x24xf32>) -> tensor<4x8x24xf32>
    %41:3 = call @silu(%40) : (tensor<4x8x24xf32>) -> (tensor<4x8x24xf32>, tensor<4x8x24xf32>, tensor<4x8x24xf32>)
    %42 = stablehlo.dot_general %41#0, %arg2, batching_dims = [0] x [0], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x24xf32>, tensor<4x24x16xf32>) -> tensor<4x8x16xf32>
    %43 = stablehlo.dot_general %35, %42, contracting_dims = [2, 1] x [1, 0], precision = [DEFAULT, DEFAULT] : (tensor<16x4x8xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %44 = stablehlo.multiply %43, %43 : tensor<16x16xf32>
    %cst_7 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %45 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %46 = stablehlo.multiply %45, %43 : tensor<16x16xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %47 = stablehlo.reduce(%44 init: %cst_8) applies stablehlo.add across dimensions = [0, 1] : (tensor<16x16xf32>, tensor<f32>) -> tensor<f32>
    %cst_9 = stablehlo.constant dense<2.560000e+02> : tensor<f32>
    %48 = stablehlo.divide %47, %cst_9 : tensor<f32>
    %cst_10 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_11 = stablehlo.constant dense<2.560000e+02> : tensor<f32>
    %49 = stablehlo.divide %cst_10, %cst_11 : tensor<f32>
    %50 = stablehlo.broadcast_in_dim %49, dims = [] : (tensor<f32>) -> tensor<16x16xf32>
    %51 = stablehlo.multiply %50, %46 : tensor<16x16xf32>
    %52 = stablehlo.dot_general %51, %35, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x16xf32>, tensor<16x4x8xf32>) -> tensor<16x4x8xf32>
    %53 = stablehlo.transpose %52, dims = [1, 2, 0] : (tensor<16x4x8xf32>) -> tensor<4x8x16xf32>
    %54 = stablehlo.dot_general %51, %42, contracting_dims = [1] x [2], precision = [DEFAULT, DEFAULT] : (tensor<16x16xf32>, tensor<4x8x16xf32>) -> tensor<16x4x8xf32>
    %55 = stablehlo.dot_general %53, %41#0, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x24xf32>) -> tensor<4x16x24xf32>
    %56 = stablehlo.transpose %55, dims = [0, 2, 1] : (tensor<4x16x24xf32>) -> tensor<4x24x16xf32>
    %57 = stablehlo.dot_general %53, %arg2, batching_dims = [0] x [0], contracting_dims = [2] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x24x16xf32>) -> tensor<4x8x24xf32>
    %58 = call @silu_2(%41#1, %41#2, %40, %57) : (tensor<4x8x24xf32>, tensor<4x8x24xf32>, tensor<4x8x24xf32>, tensor<4x8x24xf32>) -> tensor<4x8x24xf32>
    %59 = stablehlo.dot_general %58, %39, batching_dims = [0] x [0], contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x24xf32>, tensor<4x8x16xf32>) -> tensor<4x24x16xf32>
    %60 = stablehlo.transpose %59, dims = [0, 2, 1] : (tensor<4x24x16xf32>) -> tensor<4x16x24xf32>
    %61 = stablehlo.dot_general %54, %34, batching_dims = [0] x [0], contracting_dims = [1, 2] x [2, 3], precision = [DEFAULT, DEFAULT] : (tensor<16x4x8xf32>, tensor<16x2x4x8xf32>) -> tensor<16x2xf32>
    %62 = stablehlo.broadcast_in_dim %22, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x2xf32>
    %63 = stablehlo.multiply %61, %62 : tensor<16x2xf32>
    %64 = stablehlo.multiply %63, %values : tensor<16x2xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %65 = stablehlo.reduce(%64 init: %cst_12) applies stablehlo.add across dimensions = [1] : (tensor<16x2xf32>, tensor<f32>) -> tensor<16xf32>
    %66 = stablehlo.reshape %65 : (tensor<16xf32>) -> tensor<16x1xf32>
    %67 = stablehlo.negate %66 : tensor<16x1xf32>
    %68 = stablehlo.broadcast_in_dim %17, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x2xf32>
    %69 = stablehlo.divide %61, %68 : tensor<16x2xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %70 = stablehlo.reduce(%67 init: %cst_13) applies stablehlo.add across dimensions = [1] : (tensor<16x1xf32>, tensor<f32>) -> tensor<16xf32>
    %71 = stablehlo.broadcast_in_dim %70, dims = [0] : (tensor<16xf32>) -> tensor<16x2xf32>
    %72 = stablehlo.add %69, %71 : tensor<16x2xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %73 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<16x4xf32>
    %74 = "stablehlo.scatter"(%73, %15, %72) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [1], input_batching_dims = [0], scatter_indices_batching_dims = [0], scatter_dims_to_operand_dims = [1], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
      %89 = stablehlo.add %arg4, %arg5 : tensor<f32>
      stablehlo.return %89 : tensor<f32>
    }) : (tensor<16x4xf32>, tensor<16x2x1xi32>, tensor<16x2xf32>) -> tensor<16x4xf32>
    %75 = stablehlo.broadcast_in_dim %14, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x4xf32>
    %76 = stablehlo.multiply %74, %75 : tensor<16x4xf32>
    %77 = stablehlo.multiply %76, %7 : tensor<16x4xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %78 = stablehlo.reduce(%77 init: %cst_15) applies stablehlo.add across dimensions = [1] : (tensor<16x4xf32>, tensor<f32>) -> tensor<16xf32>
    %79 = stablehlo.reshape %78 : (tensor<16xf32>) -> tensor<16x1xf32>
    %80 = stablehlo.negate %79 : tensor<16x1xf32>
    %81 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<16x1xf32>) -> tensor<16x4xf32>
    %82 = stablehlo.divide %74, %81 : tensor<16x4xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %83 = stablehlo.reduce(%80 init: %cst_16) applies stablehlo.add across dimensions = [1] : (tensor<16x1xf32>, tensor<f32>) -> tensor<16xf32>
    %84 = stablehlo.broadcast_in_dim %83, dims = [0] : (tensor<16xf32>) -> tensor<16x4xf32>
    %85 = stablehlo.add %82, %84 : tensor<16x4xf32>
    %86 = stablehlo.multiply %85, %7 : tensor<16x4xf32>
    %87 = stablehlo.dot_general %86, %arg3, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<16x4xf32>, tensor<16x16xf32>) -> tensor<4x16xf32>
    %88 = stablehlo.transpose %87, dims = [1, 0] : (tensor<4x16xf32>) -> tensor<16x4xf32>
    return %48, %88, %60, %56 : tensor<f32>, tensor<16x4xf32>, tensor<4x16x24xf32>, tensor<4x24x16xf32>
  }
  func.func private @_one_hot(%arg0: tensor<16x2xi32>) -> tensor<16x2x4xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [0, 1] : (tensor<16x2xi32>) -> tensor<16x2x1xi32>
    %1 = stablehlo.iota dim = 2 : tensor<1x1x4xi32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [0, 1, 2] : (tensor<16x2x1xi32>) -> tensor<16x2x4xi32>
    %3 = stablehlo.broadcast_in_dim %1, dims = [0, 1, 2] : (tensor<1x1x4xi32>) -> tensor<16x2x4xi32>
    %4 = stablehlo.compare EQ, %2, %3, SIGNED : (tensor<16x2x4xi32>, tensor<16x2x4xi32>) -> tensor<16x2x4xi1>
    %5 = stablehlo.convert %4 : (tensor<16x2x4xi1>) -> tensor<16x2x4xf32>
    return %5 : tensor<16x2x4xf32>
  }
  func.func private @cumsum(%arg0: tensor<32x4xf32>) -> tensor<32x4xf32> {
    %0 = call @cumsum_0(%arg0) : (tensor<32x4xf32>) -> tensor<32x4xf32>
    return %0 : tensor<32x4xf32>
  }
  func.func private @cumsum_0(%arg0: tensor<32x4xf32>) -> tensor<32x4xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<f32>
    %1 = "stablehlo.reduce_window"(%arg0, %0) <{base_dilations = array<i64: 1, 1>, padding = dense<[[31, 0], [0, 0]]> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>, window_dimensions = array<i64: 32, 1>, window_strides = array<i64: 1, 1>}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %2 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<32x4xf32>, tensor<f32>) -> tensor<32x4xf32>
    return %1 : tensor<32x4xf32>
  }
  func.func private @_one_hot_1(%arg0: tensor<16x2x4xi32>) -> tensor<16x2x4x8xf32> {
    %0 = stablehlo.broadcast_in_dim %arg0, dims = [0, 1, 2] : (tensor<16x2x4xi32>) -> tensor<16x2x4x1xi32>
    %1 = stablehlo.iota dim = 3 : tensor<1x1x1x8xi32>
    %2 = stablehlo.broadcast_in_dim %0, dims = [0, 1, 2, 3] : (tensor<16x2x4x1xi32>) -> tensor<16x2x4x8xi32>
    %3 = stablehlo.broadcast_in_dim %1, dims = [0, 1, 2, 3] : (tensor<1x1x1x8xi32>) -> tensor<16x2x4x8xi32>
    %4 = stablehlo.compare EQ, %2, %3, SIGNED : (tensor<16x2x4x8xi32>, tensor<16x2x4x8xi32>) -> tensor<16x2x4x8xi1>
    %5 = stablehlo.convert %4 : (tensor<16x2x4x8xi1>) -> tensor<16x2x4x8xf32>
    return %5 : tensor<16x2x4x8xf32>
  }
  func.func private @silu(%arg0: tensor<4x8x24xf32>) -> (tensor<4x8x24xf32>, tensor<4x8x24xf32>, tensor<4x8x24xf32>) {
    %0 = stablehlo.negate %arg0 : tensor<4x8x24xf32>
    %1 = stablehlo.exponential %0 : tensor<4x8x24xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x24xf32>
    %3 = stablehlo.add %2, %1 : tensor<4x8x24xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x8x24xf32>
    %5 = stablehlo.divide %4, %3 : tensor<4x8x24xf32>
    %cst_1 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %6 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x24xf32>
    %7 = stablehlo.subtract %6, %5 : tensor<4x8x24xf32>
    %8 = stablehlo.multiply %5, %7 : tensor<4x8x24xf32>
    %9 = stablehlo.multiply %arg0, %5 : tensor<4x8x24xf32>
    return %9, %8, %5 : tensor<4x8x24xf32>, tensor<4x8x24xf32>, tensor<4x8x24xf32>
  }
  func.func private @silu_2(%arg0: tensor<4x8x24xf32>, %arg1: tensor<4x8x24xf32>, %arg2: tensor<4x8x24xf32>, %arg3: tensor<4x8x24xf32>) -> tensor<4x8x24xf32> {
    %0 = stablehlo.multiply %arg2, %arg3 : tensor<4x8x24xf32>
    %1 = stablehlo.multiply %arg3, %arg1 : tensor<4x8x24xf32>
    %2 = stablehlo.multiply %0, %arg0 : tensor<4x8x24xf32>
    %3 = stablehlo.add %1, %2 : tensor<4x8x24xf32>
    return %3 : tensor<4x8x24xf32>
  }
}
