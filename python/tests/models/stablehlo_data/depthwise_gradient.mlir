module @jit__gradient attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<3x3x1x6xf32> loc("p['d']"), %arg1: tensor<6x8xf32> loc("p['e']"), %arg2: tensor<2x8x8x6xf32> loc("data[0]")) -> (tensor<f32> {jax.result_info = "result[0]"}, tensor<3x3x1x6xf32> {jax.result_info = "result[1]['d']"}, tensor<6x8xf32> {jax.result_info = "result[1]['e']"}) {
    %0 = stablehlo.convolution(%arg2, %arg0) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 1 : i64, feature_group_count = 6 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x8x8x6xf32>, tensor<3x3x1x6xf32>) -> tensor<2x8x8x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x8x8x6xf32>, tensor<f32>) -> tensor<6xf32>
    %cst_0 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %3 = stablehlo.divide %1, %2 : tensor<6xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %4:4 = call @_var(%0, %c) : (tensor<2x8x8x6xf32>, tensor<i32>) -> (tensor<6xf32>, tensor<2x8x8x6xf32>, tensor<f32>, tensor<i1>)
    %5 = stablehlo.broadcast_in_dim %3, dims = [3] : (tensor<6xf32>) -> tensor<1x1x1x6xf32>
    %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1, 2, 3] : (tensor<1x1x1x6xf32>) -> tensor<2x8x8x6xf32>
    %7 = stablehlo.subtract %0, %6 : tensor<2x8x8x6xf32>
    %cst_1 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %9 = stablehlo.add %4#0, %8 : tensor<6xf32>
    %10 = stablehlo.rsqrt %9 : tensor<6xf32>
    %11 = stablehlo.divide %10, %9 : tensor<6xf32>
    %cst_2 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %13 = stablehlo.multiply %12, %11 : tensor<6xf32>
    %14 = stablehlo.broadcast_in_dim %10, dims = [3] : (tensor<6xf32>) -> tensor<1x1x1x6xf32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1, 2, 3] : (tensor<1x1x1x6xf32>) -> tensor<2x8x8x6xf32>
    %16 = stablehlo.multiply %7, %15 : tensor<2x8x8x6xf32>
    %17 = call @relu(%16) : (tensor<2x8x8x6xf32>) -> tensor<2x8x8x6xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %18 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<2x8x8x6xf32>
    %19 = stablehlo.compare GT, %16, %18, FLOAT : (tensor<2x8x8x6xf32>, tensor<2x8x8x6xf32>) -> tensor<2x8x8x6xi1>
    %20 = stablehlo.dot_general %17, %arg1, contracting_dims = [3] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8x8x6xf32>, tensor<6x8xf32>) -> tensor<2x8x8x8xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %21 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<f32>
    %22 = "stablehlo.reduce_window"(%20, %21) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %67 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %67 : tensor<f32>
    }) : (tensor<2x8x8x8xf32>, tensor<f32>) -> tensor<2x4x4x8xf32>
    %cst_5 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2x4x4x8xf32>
    %24 = stablehlo.divide %22, %23 : tensor<2x4x4x8xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %25 = stablehlo.reduce(%24 init: %cst_6) applies stablehlo.add across dimensions = [1, 2] : (tensor<2x4x4x8xf32>, tensor<f32>) -> tensor<2x8xf32>
    %cst_7 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %26 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %27 = stablehlo.divide %25, %26 : tensor<2x8xf32>
    %28 = stablehlo.multiply %27, %27 : tensor<2x8xf32>
    %cst_8 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %30 = stablehlo.multiply %29, %27 : tensor<2x8xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %31 = stablehlo.reduce(%28 init: %cst_9) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_10 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %32 = stablehlo.divide %31, %cst_10 : tensor<f32>
    %cst_11 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_12 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %33 = stablehlo.divide %cst_11, %cst_12 : tensor<f32>
    %34 = stablehlo.broadcast_in_dim %33, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %35 = stablehlo.multiply %34, %30 : tensor<2x8xf32>
    %cst_13 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %36 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
    %37 = stablehlo.divide %35, %36 : tensor<2x8xf32>
    %38 = stablehlo.broadcast_in_dim %37, dims = [0, 3] : (tensor<2x8xf32>) -> tensor<2x4x4x8xf32>
    %cst_14 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %39 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<2x4x4x8xf32>
    %40 = stablehlo.divide %38, %39 : tensor<2x4x4x8xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %41 = stablehlo.pad %40, %cst_15, low = [0, 1, 1, 0], high = [0, 1, 1, 0], interior = [0, 1, 1, 0] : (tensor<2x4x4x8xf32>, tensor<f32>) -> tensor<2x9x9x8xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %42 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<f32>
    %43 = "stablehlo.reduce_window"(%41, %42) <{base_dilations = array<i64: 1, 1, 1, 1>, padding = dense<0> : tensor<4x2xi64>, window_dilations = array<i64: 1, 1, 1, 1>, window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 1, 1, 1>}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %67 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %67 : tensor<f32>
    }) : (tensor<2x9x9x8xf32>, tensor<f32>) -> tensor<2x8x8x8xf32>
    %44 = stablehlo.dot_general %43, %17, contracting_dims = [0, 1, 2] x [0, 1, 2], precision = [DEFAULT, DEFAULT] : (tensor<2x8x8x8xf32>, tensor<2x8x8x6xf32>) -> tensor<8x6xf32>
    %45 = stablehlo.transpose %44, dims = [1, 0] : (tensor<8x6xf32>) -> tensor<6x8xf32>
    %46 = stablehlo.dot_general %43, %arg1, contracting_dims = [3] x [1], precision = [DEFAULT, DEFAULT] : (tensor<2x8x8x8xf32>, tensor<6x8xf32>) -> tensor<2x8x8x6xf32>
    %cst_17 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %47 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<2x8x8x6xf32>
    %48 = stablehlo.select %19, %46, %47 : tensor<2x8x8x6xi1>, tensor<2x8x8x6xf32>
    %49 = stablehlo.multiply %7, %48 : tensor<2x8x8x6xf32>
    %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %50 = stablehlo.reduce(%49 init: %cst_18) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x8x8x6xf32>, tensor<f32>) -> tensor<6xf32>
    %51 = stablehlo.reshape %50 : (tensor<6xf32>) -> tensor<1x1x1x6xf32>
    %52 = stablehlo.broadcast_in_dim %14, dims = [0, 1, 2, 3] : (tensor<1x1x1x6xf32>) -> tensor<2x8x8x6xf32>
    %53 = stablehlo.multiply %48, %52 : tensor<2x8x8x6xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %54 = stablehlo.reduce(%51 init: %cst_19) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<1x1x1x6xf32>, tensor<f32>) -> tensor<6xf32>
    %55 = stablehlo.multiply %54, %13 : tensor<6xf32>
    %56 = stablehlo.negate %53 : tensor<2x8x8x6xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %57 = stablehlo.reduce(%56 init: %cst_20) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x8x8x6xf32>, tensor<f32>) -> tensor<6xf32>
    %58 = stablehlo.reshape %57 : (tensor<6xf32>) -> tensor<1x1x1x6xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %59 = stablehlo.reduce(%58 init: %cst_21) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<1x1x1x6xf32>, tensor<f32>) -> tensor<6xf32>
    %60 = call @_var_0(%4#1, %4#2, %4#3, %55) : (tensor<2x8x8x6xf32>, tensor<f32>, tensor<i1>, tensor<6xf32>) -> tensor<2x8x8x6xf32>
    %61 = stablehlo.add %53, %60 : tensor<2x8x8x6xf32>
    %cst_22 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %62 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %63 = stablehlo.divide %59, %62 : tensor<6xf32>
    %64 = stablehlo.broadcast_in_dim %63, dims = [3] : (tensor<6xf32>) -> tensor<2x8x8x6xf32>
    %65 = stablehlo.add %61, %64 : tensor<2x8x8x6xf32>
    %66 = stablehlo.convolution(%arg2, %65) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f], window = {stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1], reverse = [false, false]} {batch_group_count = 6 : i64, feature_group_count = 1 : i64, precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]} : (tensor<2x8x8x6xf32>, tensor<2x8x8x6xf32>) -> tensor<3x3x1x6xf32>
    return %32, %66, %45 : tensor<f32>, tensor<3x3x1x6xf32>, tensor<6x8xf32>
  }
  func.func private @_var(%arg0: tensor<2x8x8x6xf32>, %arg1: tensor<i32>) -> (tensor<6xf32>, tensor<2x8x8x6xf32>, tensor<f32>, tensor<i1>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x8x8x6xf32>, tensor<f32>) -> tensor<6xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [3] : (tensor<6xf32>) -> tensor<1x1x1x6xf32>
    %cst_0 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1x1x1x6xf32>
    %3 = stablehlo.divide %1, %2 : tensor<1x1x1x6xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2, 3] : (tensor<1x1x1x6xf32>) -> tensor<2x8x8x6xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<2x8x8x6xf32>
    %6 = chlo.square %5 : tensor<2x8x8x6xf32> -> tensor<2x8x8x6xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x8x8x6xf32>
    %8 = stablehlo.multiply %7, %5 : tensor<2x8x8x6xf32>
    %9 = stablehlo.convert %arg1 : (tensor<i32>) -> tensor<f32>
    %cst_2 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %10 = stablehlo.subtract %cst_2, %9 : tensor<f32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %11 = stablehlo.reduce(%6 init: %cst_3) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x8x8x6xf32>, tensor<f32>) -> tensor<6xf32>
    %12 = stablehlo.broadcast_in_dim %10, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %13 = stablehlo.divide %11, %12 : tensor<6xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %14 = stablehlo.compare GT, %10, %cst_4, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %cst_5 = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %15 = call @_where(%14, %13, %cst_5) : (tensor<i1>, tensor<6xf32>, tensor<f32>) -> tensor<6xf32>
    return %15, %8, %10, %14 : tensor<6xf32>, tensor<2x8x8x6xf32>, tensor<f32>, tensor<i1>
  }
  func.func private @_where(%arg0: tensor<i1>, %arg1: tensor<6xf32>, %arg2: tensor<f32>) -> tensor<6xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %2 = stablehlo.select %arg0, %arg1, %1 : tensor<i1>, tensor<6xf32>
    return %2 : tensor<6xf32>
  }
  func.func private @relu(%arg0: tensor<2x8x8x6xf32>) -> tensor<2x8x8x6xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<2x8x8x6xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<2x8x8x6xf32>
    return %1 : tensor<2x8x8x6xf32>
  }
  func.func private @_var_0(%arg0: tensor<2x8x8x6xf32>, %arg1: tensor<f32>, %arg2: tensor<i1>, %arg3: tensor<6xf32>) -> tensor<2x8x8x6xf32> {
    %0 = call @_where_1(%arg2, %arg3) : (tensor<i1>, tensor<6xf32>) -> tensor<6xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %2 = stablehlo.divide %0, %1 : tensor<6xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [3] : (tensor<6xf32>) -> tensor<2x8x8x6xf32>
    %4 = stablehlo.multiply %3, %arg0 : tensor<2x8x8x6xf32>
    %5 = stablehlo.negate %4 : tensor<2x8x8x6xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %6 = stablehlo.reduce(%5 init: %cst) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<2x8x8x6xf32>, tensor<f32>) -> tensor<6xf32>
    %7 = stablehlo.reshape %6 : (tensor<6xf32>) -> tensor<1x1x1x6xf32>
    %cst_0 = stablehlo.constant dense<1.280000e+02> : tensor<f32>
    %8 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1x1x1x6xf32>
    %9 = stablehlo.divide %7, %8 : tensor<1x1x1x6xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %10 = stablehlo.reduce(%9 init: %cst_1) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<1x1x1x6xf32>, tensor<f32>) -> tensor<6xf32>
    %11 = stablehlo.broadcast_in_dim %10, dims = [3] : (tensor<6xf32>) -> tensor<2x8x8x6xf32>
    %12 = stablehlo.add %4, %11 : tensor<2x8x8x6xf32>
    return %12 : tensor<2x8x8x6xf32>
  }
  func.func private @_where_1(%arg0: tensor<i1>, %arg1: tensor<6xf32>) -> tensor<6xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<6xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<i1>, tensor<6xf32>
    return %1 : tensor<6xf32>
  }
}
