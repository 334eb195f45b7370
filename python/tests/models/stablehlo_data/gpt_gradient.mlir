module @jit__gradient attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16xf32> loc("p['b']"), %arg1: tensor<16xf32> loc("p['g']"), %arg2: tensor<16xf32> loc("p['layers'][0]['b1']"), %arg3: tensor<16xf32> loc("p['layers'][0]['b2']"), %arg4: tensor<64xf32> loc("p['layers'][0]['bu']"), %arg5: tensor<64x16xf32> loc("p['layers'][0]['down']"), %arg6: tensor<16xf32> loc("p['layers'][0]['g1']"), %arg7: tensor<16xf32> loc("p['layers'][0]['g2']"), %arg8: tensor<16x16xf32> loc("p['layers'][0]['k']"), %arg9: tensor<16x16xf32> loc("p['layers'][0]['o']"), %arg10: tensor<16x16xf32> loc("p['layers'][0]['q']"), %arg11: tensor<16x64xf32> loc("p['layers'][0]['up']"), %arg12: tensor<16x16xf32> loc("p['layers'][0]['v']"), %arg13: tensor<16xf32> loc("p['layers'][1]['b1']"), %arg14: tensor<16xf32> loc("p['layers'][1]['b2']"), %arg15: tensor<64xf32> loc("p['layers'][1]['bu']"), %arg16: tensor<64x16xf32> loc("p['layers'][1]['down']"), %arg17: tensor<16xf32> loc("p['layers'][1]['g1']"), %arg18: tensor<16xf32> loc("p['layers'][1]['g2']"), %arg19: tensor<16x16xf32> loc("p['layers'][1]['k']"), %arg20: tensor<16x16xf32> loc("p['layers'][1]['o']"), %arg21: tensor<16x16xf32> loc("p['layers'][1]['q']"), %arg22: tensor<16x64xf32> loc("p['layers'][1]['up']"), %arg23: tensor<16x16xf32> loc("p['layers'][1]['v']"), %arg24: tensor<8x16xf32> loc("p['wpe']"), %arg25: tensor<32x16xf32> loc("p['wte']"), %arg26: tensor<4x8xi32> loc("data[0]"), %arg27: tensor<4x8xi32> loc("data[1]")) -> (tensor<f32> {jax.result_info = "result[0]"}, tensor<16xf32> {jax.result_info = "result[1]['b']"}, tensor<16xf32> {jax.result_info = "result[1]['g']"}, tensor<16xf32> {jax.result_info = "result[1]['layers'][0]['b1']"}, tensor<16xf32> {jax.result_info = "result[1]['layers'][0]['b2']"}, tensor<64xf32> {jax.result_info = "result[1]['layers'][0]['bu']"}, tensor<64x16xf32> {jax.result_info = "result[1]['layers'][0]['down']"}, tensor<16xf32> {jax.result_info = "result[1]['layers'][0]['g1']"}, tensor<16xf32> {jax.result_info = "result[1]['layers'][0]['g2']"}, tensor<16x16xf32> {jax.result_info = "result[1]['layers'][0]['k']"}, tensor<16x16xf32> {jax.result_info = "result[1]['layers'][0]['o']"}, tensor<16x16xf32> {jax.result_info = "result[1]['layers'][0]['q']"}, tensor<16x64xf32> {jax.result_info = "result[1]['layers'][0]['up']"}, tensor<16x16xf32> {jax.result_info = "result[1]['layers'][0]['v']"}, tensor<16xf32> {jax.result_info = "result[1]['layers'][1]['b1']"}, tensor<16xf32> {jax.result_info = "result[1]['layers'][1]['b2']"}, tensor<64xf32> {jax.result_info = "result[1]['layers'][1]['bu']"}, tensor<64x16xf32> {jax.result_info = "result[1]['layers'][1]['down']"}, tensor<16xf32> {jax.result_info = "result[1]['layers'][1]['g1']"}, tensor<16xf32> {jax.result_info = "result[1]['layers'][1]['g2']"}, tensor<16x16xf32> {jax.result_info = "result[1]['layers'][1]['k']"}, tensor<16x16xf32> {jax.result_info = "result[1]['layers'][1]['o']"}, tensor<16x16xf32> {jax.result_info = "result[1]['layers'][1]['q']"}, tensor<16x64xf32> {jax.result_info = "result[1]['layers'][1]['up']"}, tensor<16x16xf32> {jax.result_info = "result[1]['layers'][1]['v']"}, tensor<8x16xf32> {jax.result_info = "result[1]['wpe']"}, tensor<32x16xf32> {jax.result_info = "result[1]['wte']"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %1 = stablehlo.compare LT, %arg26, %0, SIGNED : (tensor<4x8xi32>, tensor<4x8xi32>) -> tensor<4x8xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %3 = stablehlo.add %arg26, %2 : tensor<4x8xi32>
    %4 = stablehlo.select %1, %3, %arg26 : tensor<4x8xi1>, tensor<4x8xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
    %6 = "stablehlo.gather"(%arg25, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xf32>, tensor<4x8x1xi32>) -> tensor<4x8x16xf32>
    %7 = stablehlo.broadcast_in_dim %arg24, dims = [1, 2] : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1, 2] : (tensor<1x8x16xf32>) -> tensor<4x8x16xf32>
    %9 = stablehlo.add %6, %8 : tensor<4x8x16xf32>
    %10:30 = call @block(%arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %9) : (tensor<16xf32>, tensor<16xf32>, tensor<64xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>) -> (tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>, tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>)
    %11:30 = call @block(%arg13, %arg14, %arg15, %arg16, %arg17, %arg18, %arg19, %arg20, %arg21, %arg22, %arg23, %10#0) : (tensor<16xf32>, tensor<16xf32>, tensor<64xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>) -> (tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>, tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>)
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %12 = stablehlo.reduce(%11#0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %13 = stablehlo.broadcast_in_dim %12, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_1 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %15 = stablehlo.divide %13, %14 : tensor<4x8x1xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %17 = stablehlo.subtract %11#0, %16 : tensor<4x8x16xf32>
    %18 = stablehlo.multiply %17, %17 : tensor<4x8x16xf32>
    %cst_2 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x8x16xf32>
    %20 = stablehlo.multiply %19, %17 : tensor<4x8x16xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %21 = stablehlo.reduce(%18 init: %cst_3) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %22 = stablehlo.broadcast_in_dim %21, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_4 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %23 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %24 = stablehlo.divide %22, %23 : tensor<4x8x1xf32>
    %25 = stablehlo.broadcast_in_dim %15, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %26 = stablehlo.subtract %11#0, %25 : tensor<4x8x16xf32>
    %cst_5 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %27 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %28 = stablehlo.add %24, %27 : tensor<4x8x1xf32>
    %29 = stablehlo.rsqrt %28 : tensor<4x8x1xf32>
    %30 = stablehlo.divide %29, %28 : tensor<4x8x1xf32>
    %cst_6 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %31 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %32 = stablehlo.multiply %31, %30 : tensor<4x8x1xf32>
    %33 = stablehlo.broadcast_in_dim %29, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %34 = stablehlo.multiply %26, %33 : tensor<4x8x16xf32>
    %35 = stablehlo.broadcast_in_dim %arg1, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %37 = stablehlo.multiply %34, %36 : tensor<4x8x16xf32>
    %38 = stablehlo.broadcast_in_dim %arg0, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %39 = stablehlo.broadcast_in_dim %38, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %40 = stablehlo.add %37, %39 : tensor<4x8x16xf32>
    %41 = stablehlo.transpose %arg25, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %42 = stablehlo.dot_general %40, %41, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x32xf32>) -> tensor<4x8x32xf32>
    %43:3 = call @log_softmax(%42) : (tensor<4x8x32xf32>) -> (tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<4x8x1xf32>)
    %44 = stablehlo.broadcast_in_dim %arg27, dims = [0, 1] : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
    %45:2 = call @take_along_axis(%43#0, %44) : (tensor<4x8x32xf32>, tensor<4x8x1xi32>) -> (tensor<4x8x1xf32>, tensor<4x8x1x1xi32>)
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %46 = stablehlo.reduce(%45#0 init: %cst_7) applies stablehlo.add across dimensions = [0, 1, 2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<f32>
    %cst_8 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %47 = stablehlo.divide %46, %cst_8 : tensor<f32>
    %48 = stablehlo.negate %47 : tensor<f32>
    %cst_9 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %49 = stablehlo.negate %cst_9 : tensor<f32>
    %cst_10 = stablehlo.constant dense<3.200000e+01> : tensor<f32>
    %50 = stablehlo.divide %49, %cst_10 : tensor<f32>
    %51 = stablehlo.broadcast_in_dim %50, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %52 = call @take_along_axis_0(%45#1, %51) : (tensor<4x8x1x1xi32>, tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %53 = call @log_softmax_1(%43#1, %43#2, %52) : (tensor<4x8x32xf32>, tensor<4x8x1xf32>, tensor<4x8x32xf32>) -> tensor<4x8x32xf32>
    %54 = stablehlo.dot_general %53, %40, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x32xf32>, tensor<4x8x16xf32>) -> tensor<32x16xf32>
    %55 = stablehlo.transpose %54, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %56 = stablehlo.dot_general %53, %41, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x32xf32>, tensor<16x32xf32>) -> tensor<4x8x16xf32>
    %57 = stablehlo.transpose %55, dims = [1, 0] : (tensor<16x32xf32>) -> tensor<32x16xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %58 = stablehlo.reduce(%56 init: %cst_11) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %59 = stablehlo.reshape %58 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %60 = stablehlo.reduce(%59 init: %cst_12) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %61 = stablehlo.multiply %34, %56 : tensor<4x8x16xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %62 = stablehlo.reduce(%61 init: %cst_13) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %63 = stablehlo.reshape %62 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %64 = stablehlo.broadcast_in_dim %35, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %65 = stablehlo.multiply %56, %64 : tensor<4x8x16xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %66 = stablehlo.reduce(%63 init: %cst_14) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %67 = stablehlo.multiply %26, %65 : tensor<4x8x16xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %68 = stablehlo.reduce(%67 init: %cst_15) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %69 = stablehlo.reshape %68 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %70 = stablehlo.broadcast_in_dim %29, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %71 = stablehlo.multiply %65, %70 : tensor<4x8x16xf32>
    %72 = stablehlo.multiply %69, %32 : tensor<4x8x1xf32>
    %73 = stablehlo.negate %71 : tensor<4x8x16xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %74 = stablehlo.reduce(%73 init: %cst_16) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %75 = stablehlo.reshape %74 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_17 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %76 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %77 = stablehlo.divide %72, %76 : tensor<4x8x1xf32>
    %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %78 = stablehlo.reduce(%77 init: %cst_18) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %79 = stablehlo.broadcast_in_dim %78, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %80 = stablehlo.multiply %79, %20 : tensor<4x8x16xf32>
    %81 = stablehlo.negate %80 : tensor<4x8x16xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %82 = stablehlo.reduce(%81 init: %cst_19) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %83 = stablehlo.reshape %82 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %84 = stablehlo.add %71, %80 : tensor<4x8x16xf32>
    %85 = stablehlo.add %75, %83 : tensor<4x8x1xf32>
    %cst_20 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %86 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %87 = stablehlo.divide %85, %86 : tensor<4x8x1xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %88 = stablehlo.reduce(%87 init: %cst_21) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %89 = stablehlo.broadcast_in_dim %88, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %90 = stablehlo.add %84, %89 : tensor<4x8x16xf32>
    %91:12 = call @block_2(%11#1, %11#2, %11#3, %11#4, %11#5, %11#6, %arg21, %11#7, %arg19, %arg23, %11#8, %11#9, %11#10, %11#11, %11#12, %11#13, %11#14, %11#15, %arg20, %11#16, %11#17, %11#18, %11#19, %11#20, %11#21, %11#22, %arg22, %11#23, %11#24, %11#25, %11#26, %11#27, %11#28, %arg16, %11#29, %90) : (tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>, tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<16x64xf32>, tensor<4x8x16xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<64x16xf32>, tensor<4x8x64xf32>, tensor<4x8x16xf32>) -> (tensor<16xf32>, tensor<16xf32>, tensor<64xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>)
    %92:12 = call @block_2(%10#1, %10#2, %10#3, %10#4, %10#5, %10#6, %arg10, %10#7, %arg8, %arg12, %10#8, %10#9, %10#10, %10#11, %10#12, %10#13, %10#14, %10#15, %arg9, %10#16, %10#17, %10#18, %10#19, %10#20, %10#21, %10#22, %arg11, %10#23, %10#24, %10#25, %10#26, %10#27, %10#28, %arg5, %10#29, %91#11) : (tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>, tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<16x64xf32>, tensor<4x8x16xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<64x16xf32>, tensor<4x8x64xf32>, tensor<4x8x16xf32>) -> (tensor<16xf32>, tensor<16xf32>, tensor<64xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>)
    %cst_22 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %93 = stablehlo.reduce(%92#11 init: %cst_22) applies stablehlo.add across dimensions = [0] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    %94 = stablehlo.reshape %93 : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
    %cst_23 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %95 = stablehlo.reduce(%94 init: %cst_23) applies stablehlo.add across dimensions = [0] : (tensor<1x8x16xf32>, tensor<f32>) -> tensor<8x16xf32>
    %cst_24 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %96 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<32x16xf32>
    %97 = "stablehlo.scatter"(%96, %5, %92#11) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [2], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 2>, unique_indices = false}> ({
    ^bb0(%arg28: tensor<f32>, %arg29: tensor<f32>):
      %99 = stablehlo.add %arg28, %arg29 : tensor<f32>
      stablehlo.return %99 : tensor<f32>
    }) : (tensor<32x16xf32>, tensor<4x8x1xi32>, tensor<4x8x16xf32>) -> tensor<32x16xf32>
    %98 = stablehlo.add %57, %97 : tensor<32x16xf32>
    return %48, %60, %66, %92#0, %92#1, %92#2, %92#3, %92#4, %92#5, %92#6, %92#7, %92#8, %92#9, %92#10, %91#0, %91#1, %91#2, %91#3, %91#4, %91#5, %91#6, %91#7, %91#8, %91#9, %91#10, %95, %98 : tensor<f32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<64xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<8x16xf32>, tensor<32x16xf32>
  }
  func.func private @block(%arg0: tensor<16xf32>, %arg1: tensor<16xf32>, %arg2: tensor<64xf32>, %arg3: tensor<64x16xf32>, %arg4: tensor<16xf32>, %arg5: tensor<16xf32>, %arg6: tensor<16x16xf32>, %arg7: tensor<16x16xf32>, %arg8: tensor<16x16xf32>, %arg9: tensor<16x64xf32>, %arg10: tensor<16x16xf32>, %arg11: tensor<4x8x16xf32>) -> (tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>, tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>) {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.reduce(%arg11 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_0 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %3 = stablehlo.divide %1, %2 : tensor<4x8x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %5 = stablehlo.subtract %arg11, %4 : tensor<4x8x16xf32>
    %6 = stablehlo.multiply %5, %5 : tensor<4x8x16xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %7 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x16xf32>
    %8 = stablehlo.multiply %7, %5 : tensor<4x8x16xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %9 = stablehlo.reduce(%6 init: %cst_2) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_3 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %11 = stablehlo.broadcast_in_dim %cst_3, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %12 = stablehlo.divide %10, %11 : tensor<4x8x1xf32>
    %13 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %14 = stablehlo.subtract %arg11, %13 : tensor<4x8x16xf32>
    %cst_4 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %15 = stablehlo.broadcast_in_dim %cst_4, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %16 = stablehlo.add %12, %15 : tensor<4x8x1xf32>
    %17 = stablehlo.rsqrt %16 : tensor<4x8x1xf32>
    %18 = stablehlo.divide %17, %16 : tensor<4x8x1xf32>
    %cst_5 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %20 = stablehlo.multiply %19, %18 : tensor<4x8x1xf32>
    %21 = stablehlo.broadcast_in_dim %17, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %22 = stablehlo.multiply %14, %21 : tensor<4x8x16xf32>
    %23 = stablehlo.broadcast_in_dim %arg4, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %24 = stablehlo.broadcast_in_dim %23, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %25 = stablehlo.multiply %22, %24 : tensor<4x8x16xf32>
    %26 = stablehlo.broadcast_in_dim %arg0, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %27 = stablehlo.broadcast_in_dim %26, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %28 = stablehlo.add %25, %27 : tensor<4x8x16xf32>
    %29 = stablehlo.dot_general %28, %arg8, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %30 = stablehlo.reshape %29 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %31 = stablehlo.dot_general %28, %arg6, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %32 = stablehlo.reshape %31 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %33 = stablehlo.dot_general %28, %arg10, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %34 = stablehlo.reshape %33 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %35 = stablehlo.dot_general %30, %32, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x8xf32>
    %cst_6 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %36 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %37 = stablehlo.divide %35, %36 : tensor<4x4x8x8xf32>
    %c = stablehlo.constant dense<true> : tensor<i1>
    %38 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i1>) -> tensor<8x8xi1>
    %39 = call @tril(%38) : (tensor<8x8xi1>) -> tensor<8x8xi1>
    %cst_7 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %40:2 = call @_where(%39, %37, %cst_7) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> (tensor<4x4x8x8xf32>, tensor<4x4x8x8xi1>)
    %cst_8 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %41 = stablehlo.reduce(%40#0 init: %cst_8) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %cst_9 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %42 = stablehlo.broadcast_in_dim %cst_9, dims = [] : (tensor<f32>) -> tensor<4x4x8xf32>
    %43 = stablehlo.maximum %42, %41 : tensor<4x4x8xf32>
    %44 = stablehlo.broadcast_in_dim %43, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %45 = stablehlo.broadcast_in_dim %44, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %46 = stablehlo.subtract %40#0, %45 : tensor<4x4x8x8xf32>
    %47 = stablehlo.exponential %46 : tensor<4x4x8x8xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %48 = stablehlo.reduce(%47 init: %cst_10) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %49 = stablehlo.broadcast_in_dim %48, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %50 = stablehlo.broadcast_in_dim %49, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %51 = stablehlo.divide %47, %50 : tensor<4x4x8x8xf32>
    %52 = stablehlo.multiply %49, %49 : tensor<4x4x8x1xf32>
    %cst_11 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %53 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<4x4x8x1xf32>
    %54 = stablehlo.divide %53, %52 : tensor<4x4x8x1xf32>
    %55 = stablehlo.dot_general %34, %51, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x4x8xf32>
    %56 = stablehlo.transpose %55, dims = [0, 3, 1, 2] : (tensor<4x4x4x8xf32>) -> tensor<4x8x4x4xf32>
    %57 = stablehlo.reshape %56 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %58 = stablehlo.dot_general %57, %arg7, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %59 = stablehlo.add %arg11, %58 : tensor<4x8x16xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %60 = stablehlo.reduce(%59 init: %cst_12) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %61 = stablehlo.broadcast_in_dim %60, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_13 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %62 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %63 = stablehlo.divide %61, %62 : tensor<4x8x1xf32>
    %64 = stablehlo.broadcast_in_dim %63, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %65 = stablehlo.subtract %59, %64 : tensor<4x8x16xf32>
    %66 = stablehlo.multiply %65, %65 : tensor<4x8x16xf32>
    %cst_14 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %67 = stablehlo.broadcast_in_dim %cst_14, dims = [] : (tensor<f32>) -> tensor<4x8x16xf32>
    %68 = stablehlo.multiply %67, %65 : tensor<4x8x16xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %69 = stablehlo.reduce(%66 init: %cst_15) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %70 = stablehlo.broadcast_in_dim %69, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_16 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %71 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %72 = stablehlo.divide %70, %71 : tensor<4x8x1xf32>
    %73 = stablehlo.broadcast_in_dim %63, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %74 = stablehlo.subtract %59, %73 : tensor<4x8x16xf32>
    %cst_17 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %75 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %76 = stablehlo.add %72, %75 : tensor<4x8x1xf32>
    %77 = stablehlo.rsqrt %76 : tensor<4x8x1xf32>
    %78 = stablehlo.divide %77, %76 : tensor<4x8x1xf32>
    %cst_18 = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %79 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %80 = stablehlo.multiply %79, %78 : tensor<4x8x1xf32>
    %81 = stablehlo.broadcast_in_dim %77, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %82 = stablehlo.multiply %74, %81 : tensor<4x8x16xf32>
    %83 = stablehlo.broadcast_in_dim %arg5, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %84 = stablehlo.broadcast_in_dim %83, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %85 = stablehlo.multiply %82, %84 : tensor<4x8x16xf32>
    %86 = stablehlo.broadcast_in_dim %arg1, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %87 = stablehlo.broadcast_in_dim %86, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %88 = stablehlo.add %85, %87 : tensor<4x8x16xf32>
    %89 = stablehlo.dot_general %88, %arg9, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x64xf32>) -> tensor<4x8x64xf32>
    %90 = stablehlo.broadcast_in_dim %arg2, dims = [2] : (tensor<64xf32>) -> tensor<1x1x64xf32>
    %91 = stablehlo.broadcast_in_dim %90, dims = [0, 1, 2] : (tensor<1x1x64xf32>) -> tensor<4x8x64xf32>
    %92 = stablehlo.add %89, %91 : tensor<4x8x64xf32>
    %93 = stablehlo.multiply %92, %92 : tensor<4x8x64xf32>
    %94 = stablehlo.multiply %93, %92 : tensor<4x8x64xf32>
    %95 = stablehlo.multiply %92, %92 : tensor<4x8x64xf32>
    %cst_19 = stablehlo.constant dense<3.000000e+00> : tensor<f32>
    %96 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %97 = stablehlo.multiply %96, %95 : tensor<4x8x64xf32>
    %cst_20 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %98 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %99 = stablehlo.multiply %98, %94 : tensor<4x8x64xf32>
    %100 = stablehlo.add %92, %99 : tensor<4x8x64xf32>
    %cst_21 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %101 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %102 = stablehlo.multiply %101, %100 : tensor<4x8x64xf32>
    %103 = stablehlo.tanh %102 : tensor<4x8x64xf32>
    %cst_22 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %104 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %105 = stablehlo.subtract %104, %103 : tensor<4x8x64xf32>
    %cst_23 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %106 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %107 = stablehlo.add %106, %103 : tensor<4x8x64xf32>
    %cst_24 = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %108 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %109 = stablehlo.multiply %108, %107 : tensor<4x8x64xf32>
    %110 = stablehlo.multiply %92, %109 : tensor<4x8x64xf32>
    %111 = stablehlo.dot_general %110, %arg3, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x64xf32>, tensor<64x16xf32>) -> tensor<4x8x16xf32>
    %112 = stablehlo.add %59, %111 : tensor<4x8x16xf32>
    return %112, %8, %20, %17, %14, %23, %22, %28, %32, %30, %40#1, %47, %49, %54, %51, %34, %57, %68, %80, %77, %74, %83, %82, %88, %97, %103, %105, %109, %92, %110 : tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>, tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x1xf32>, tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x1xf32>, tensor<4x8x1xf32>, tensor<4x8x16xf32>, tensor<1x1x16xf32>, tensor<4x8x16xf32>, tensor<4x8x16xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>, tensor<4x8x64xf32>
  }
  func.func private @tril(%arg0: tensor<8x8xi1>) -> tensor<8x8xi1> {
    %0 = stablehlo.iota dim = 0 : tensor<8x8xi32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<8x8xi32>
    %2 = stablehlo.add %0, %1 : tensor<8x8xi32>
    %3 = stablehlo.iota dim = 1 : tensor<8x8xi32>
    %4 = stablehlo.compare GE, %2, %3, SIGNED : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
    %c_0 = stablehlo.constant dense<false> : tensor<i1>
    %5 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i1>) -> tensor<8x8xi1>
    %6 = stablehlo.select %4, %arg0, %5 : tensor<8x8xi1>, tensor<8x8xi1>
    return %6 : tensor<8x8xi1>
  }
  func.func private @_where(%arg0: tensor<8x8xi1>, %arg1: tensor<4x4x8x8xf32>, %arg2: tensor<f32>) -> (tensor<4x4x8x8xf32>, tensor<4x4x8x8xi1>) {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<8x8xi1>) -> tensor<4x4x8x8xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>
    return %3, %1 : tensor<4x4x8x8xf32>, tensor<4x4x8x8xi1>
  }
  func.func private @log_softmax(%arg0: tensor<4x8x32xf32>) -> (tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<4x8x1xf32>) {
    %cst = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %0 = stablehlo.reduce(%arg0 init: %cst) applies stablehlo.maximum across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %cst_0 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
    %2 = stablehlo.maximum %1, %0 : tensor<4x8xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %5 = stablehlo.subtract %arg0, %4 : tensor<4x8x32xf32>
    %6 = stablehlo.exponential %5 : tensor<4x8x32xf32>
    %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %7 = stablehlo.reduce(%6 init: %cst_1) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %8 = stablehlo.broadcast_in_dim %7, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %9 = stablehlo.log %8 : tensor<4x8x1xf32>
    %10 = stablehlo.broadcast_in_dim %9, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    %11 = stablehlo.subtract %5, %10 : tensor<4x8x32xf32>
    return %11, %6, %8 : tensor<4x8x32xf32>, tensor<4x8x32xf32>, tensor<4x8x1xf32>
  }
  func.func private @take_along_axis(%arg0: tensor<4x8x32xf32>, %arg1: tensor<4x8x1xi32>) -> (tensor<4x8x1xf32>, tensor<4x8x1x1xi32>) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x8x1xi32>
    %1 = stablehlo.compare LT, %arg1, %0, SIGNED : (tensor<4x8x1xi32>, tensor<4x8x1xi32>) -> tensor<4x8x1xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x8x1xi32>
    %3 = stablehlo.add %arg1, %2 : tensor<4x8x1xi32>
    %4 = stablehlo.select %1, %3, %arg1 : tensor<4x8x1xi1>, tensor<4x8x1xi32>
    %5 = stablehlo.reshape %4 : (tensor<4x8x1xi32>) -> tensor<4x8x1x1xi32>
    %c_1 = stablehlo.constant dense<31> : tensor<1xi32>
    %c_2 = stablehlo.constant dense<0> : tensor<i32>
    %6 = stablehlo.broadcast_in_dim %c_2, dims = [] : (tensor<i32>) -> tensor<4x8x1x1xi32>
    %7 = stablehlo.compare GE, %5, %6, SIGNED : (tensor<4x8x1x1xi32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1x1xi1>
    %8 = stablehlo.broadcast_in_dim %c_1, dims = [3] : (tensor<1xi32>) -> tensor<1x1x1x1xi32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1, 2, 3] : (tensor<1x1x1x1xi32>) -> tensor<4x8x1x1xi32>
    %10 = stablehlo.compare LE, %5, %9, SIGNED : (tensor<4x8x1x1xi32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1x1xi1>
    %11 = stablehlo.and %7, %10 : tensor<4x8x1x1xi1>
    %c_3 = stablehlo.constant dense<true> : tensor<i1>
    %12 = stablehlo.reduce(%11 init: %c_3) applies stablehlo.and across dimensions = [3] : (tensor<4x8x1x1xi1>, tensor<i1>) -> tensor<4x8x1xi1>
    %13 = "stablehlo.gather"(%arg0, %5) <{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [2], operand_batching_dims = [0, 1], start_indices_batching_dims = [0, 1], start_index_map = [2], index_vector_dim = 3>, indices_are_sorted = false, slice_sizes = array<i64: 1, 1, 1>}> : (tensor<4x8x32xf32>, tensor<4x8x1x1xi32>) -> tensor<4x8x1xf32>
    %cst = stablehlo.constant dense<0x7FC00000> : tensor<f32>
    %14 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %15 = stablehlo.select %12, %13, %14 : tensor<4x8x1xi1>, tensor<4x8x1xf32>
    return %15, %5 : tensor<4x8x1xf32>, tensor<4x8x1x1xi32>
  }
  func.func private @take_along_axis_0(%arg0: tensor<4x8x1x1xi32>, %arg1: tensor<4x8x1xf32>) -> tensor<4x8x32xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x32xf32>
    %1 = "stablehlo.scatter"(%0, %arg0, %arg1) <{indices_are_sorted = false, scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [2], input_batching_dims = [0, 1], scatter_indices_batching_dims = [0, 1], scatter_dims_to_operand_dims = [2], index_vector_dim = 3>, unique_indices = false}> ({
    ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
      %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }) : (tensor<4x8x32xf32>, tensor<4x8x1x1xi32>, tensor<4x8x1xf32>) -> tensor<4x8x32xf32>
    return %1 : tensor<4x8x32xf32>
  }
  func.func private @log_softmax_1(%arg0: tensor<4x8x32xf32>, %arg1: tensor<4x8x1xf32>, %arg2: tensor<4x8x32xf32>) -> tensor<4x8x32xf32> {
    %0 = stablehlo.negate %arg2 : tensor<4x8x32xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.reduce(%0 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x32xf32>, tensor<f32>) -> tensor<4x8xf32>
    %2 = stablehlo.reshape %1 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %3 = stablehlo.divide %2, %arg1 : tensor<4x8x1xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %4 = stablehlo.reduce(%3 init: %cst_0) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x32xf32>
    %6 = stablehlo.multiply %5, %arg0 : tensor<4x8x32xf32>
    %7 = stablehlo.add %arg2, %6 : tensor<4x8x32xf32>
    return %7 : tensor<4x8x32xf32>
  }
  func.func private @block_2(%arg0: tensor<4x8x16xf32>, %arg1: tensor<4x8x1xf32>, %arg2: tensor<4x8x1xf32>, %arg3: tensor<4x8x16xf32>, %arg4: tensor<1x1x16xf32>, %arg5: tensor<4x8x16xf32>, %arg6: tensor<16x16xf32>, %arg7: tensor<4x8x16xf32>, %arg8: tensor<16x16xf32>, %arg9: tensor<16x16xf32>, %arg10: tensor<4x8x4x4xf32>, %arg11: tensor<4x8x4x4xf32>, %arg12: tensor<4x4x8x8xi1>, %arg13: tensor<4x4x8x8xf32>, %arg14: tensor<4x4x8x1xf32>, %arg15: tensor<4x4x8x1xf32>, %arg16: tensor<4x4x8x8xf32>, %arg17: tensor<4x8x4x4xf32>, %arg18: tensor<16x16xf32>, %arg19: tensor<4x8x16xf32>, %arg20: tensor<4x8x16xf32>, %arg21: tensor<4x8x1xf32>, %arg22: tensor<4x8x1xf32>, %arg23: tensor<4x8x16xf32>, %arg24: tensor<1x1x16xf32>, %arg25: tensor<4x8x16xf32>, %arg26: tensor<16x64xf32>, %arg27: tensor<4x8x16xf32>, %arg28: tensor<4x8x64xf32>, %arg29: tensor<4x8x64xf32>, %arg30: tensor<4x8x64xf32>, %arg31: tensor<4x8x64xf32>, %arg32: tensor<4x8x64xf32>, %arg33: tensor<64x16xf32>, %arg34: tensor<4x8x64xf32>, %arg35: tensor<4x8x16xf32>) -> (tensor<16xf32>, tensor<16xf32>, tensor<64xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>) {
    %0 = stablehlo.dot_general %arg35, %arg34, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x64xf32>) -> tensor<16x64xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<16x64xf32>) -> tensor<64x16xf32>
    %2 = stablehlo.dot_general %arg35, %arg33, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<64x16xf32>) -> tensor<4x8x64xf32>
    %3 = stablehlo.multiply %arg32, %2 : tensor<4x8x64xf32>
    %4 = stablehlo.multiply %2, %arg31 : tensor<4x8x64xf32>
    %cst = stablehlo.constant dense<5.000000e-01> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %6 = stablehlo.multiply %5, %3 : tensor<4x8x64xf32>
    %7 = stablehlo.multiply %6, %arg30 : tensor<4x8x64xf32>
    %8 = stablehlo.multiply %7, %arg29 : tensor<4x8x64xf32>
    %9 = stablehlo.add %7, %8 : tensor<4x8x64xf32>
    %cst_0 = stablehlo.constant dense<0.797884583> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %11 = stablehlo.multiply %10, %9 : tensor<4x8x64xf32>
    %12 = stablehlo.add %4, %11 : tensor<4x8x64xf32>
    %cst_1 = stablehlo.constant dense<4.471500e-02> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x64xf32>
    %14 = stablehlo.multiply %13, %11 : tensor<4x8x64xf32>
    %15 = stablehlo.multiply %14, %arg28 : tensor<4x8x64xf32>
    %16 = stablehlo.add %12, %15 : tensor<4x8x64xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %17 = stablehlo.reduce(%16 init: %cst_2) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x64xf32>, tensor<f32>) -> tensor<64xf32>
    %18 = stablehlo.reshape %17 : (tensor<64xf32>) -> tensor<1x1x64xf32>
    %cst_3 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %19 = stablehlo.reduce(%18 init: %cst_3) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x64xf32>, tensor<f32>) -> tensor<64xf32>
    %20 = stablehlo.dot_general %16, %arg27, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x64xf32>, tensor<4x8x16xf32>) -> tensor<64x16xf32>
    %21 = stablehlo.transpose %20, dims = [1, 0] : (tensor<64x16xf32>) -> tensor<16x64xf32>
    %22 = stablehlo.dot_general %16, %arg26, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x64xf32>, tensor<16x64xf32>) -> tensor<4x8x16xf32>
    %cst_4 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %23 = stablehlo.reduce(%22 init: %cst_4) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %24 = stablehlo.reshape %23 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %cst_5 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %25 = stablehlo.reduce(%24 init: %cst_5) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %26 = stablehlo.multiply %arg25, %22 : tensor<4x8x16xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %27 = stablehlo.reduce(%26 init: %cst_6) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %28 = stablehlo.reshape %27 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %29 = stablehlo.broadcast_in_dim %arg24, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %30 = stablehlo.multiply %22, %29 : tensor<4x8x16xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %31 = stablehlo.reduce(%28 init: %cst_7) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %32 = stablehlo.multiply %arg23, %30 : tensor<4x8x16xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %33 = stablehlo.reduce(%32 init: %cst_8) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %34 = stablehlo.reshape %33 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %35 = stablehlo.broadcast_in_dim %arg22, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %36 = stablehlo.multiply %30, %35 : tensor<4x8x16xf32>
    %37 = stablehlo.multiply %34, %arg21 : tensor<4x8x1xf32>
    %38 = stablehlo.negate %36 : tensor<4x8x16xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %39 = stablehlo.reduce(%38 init: %cst_9) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %40 = stablehlo.reshape %39 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %41 = stablehlo.add %arg35, %36 : tensor<4x8x16xf32>
    %cst_10 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %42 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %43 = stablehlo.divide %37, %42 : tensor<4x8x1xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %44 = stablehlo.reduce(%43 init: %cst_11) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %45 = stablehlo.broadcast_in_dim %44, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %46 = stablehlo.multiply %45, %arg20 : tensor<4x8x16xf32>
    %47 = stablehlo.negate %46 : tensor<4x8x16xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %48 = stablehlo.reduce(%47 init: %cst_12) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %49 = stablehlo.reshape %48 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %50 = stablehlo.add %41, %46 : tensor<4x8x16xf32>
    %51 = stablehlo.add %40, %49 : tensor<4x8x1xf32>
    %cst_13 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %52 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %53 = stablehlo.divide %51, %52 : tensor<4x8x1xf32>
    %cst_14 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %54 = stablehlo.reduce(%53 init: %cst_14) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %55 = stablehlo.broadcast_in_dim %54, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %56 = stablehlo.add %50, %55 : tensor<4x8x16xf32>
    %57 = stablehlo.dot_general %56, %arg19, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %58 = stablehlo.transpose %57, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %59 = stablehlo.dot_general %56, %arg18, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %60 = stablehlo.reshape %59 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %61 = stablehlo.transpose %60, dims = [0, 2, 3, 1] : (tensor<4x8x4x4xf32>) -> tensor<4x4x4x8xf32>
    %62 = stablehlo.dot_general %61, %arg17, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x4x4x8xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x8xf32>
    %63 = stablehlo.dot_general %61, %arg16, batching_dims = [0, 1] x [0, 1], contracting_dims = [3] x [2], precision = [DEFAULT, DEFAULT] : (tensor<4x4x4x8xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x4x8xf32>
    %64 = stablehlo.transpose %63, dims = [0, 3, 1, 2] : (tensor<4x4x4x8xf32>) -> tensor<4x8x4x4xf32>
    %65 = stablehlo.broadcast_in_dim %arg15, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %66 = stablehlo.multiply %62, %65 : tensor<4x4x8x8xf32>
    %67 = stablehlo.multiply %66, %arg13 : tensor<4x4x8x8xf32>
    %cst_15 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %68 = stablehlo.reduce(%67 init: %cst_15) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %69 = stablehlo.reshape %68 : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %70 = stablehlo.negate %69 : tensor<4x4x8x1xf32>
    %71 = stablehlo.broadcast_in_dim %arg14, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %72 = stablehlo.divide %62, %71 : tensor<4x4x8x8xf32>
    %cst_16 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %73 = stablehlo.reduce(%70 init: %cst_16) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x1xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %74 = stablehlo.broadcast_in_dim %73, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x8xf32>
    %75 = stablehlo.add %72, %74 : tensor<4x4x8x8xf32>
    %76 = stablehlo.multiply %75, %arg13 : tensor<4x4x8x8xf32>
    %77 = call @_where_3(%arg12, %76) : (tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32>
    %cst_17 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %78 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %79 = stablehlo.divide %77, %78 : tensor<4x4x8x8xf32>
    %80 = stablehlo.dot_general %79, %arg11, batching_dims = [0, 1] x [0, 2], contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x4xf32>
    %81 = stablehlo.transpose %80, dims = [0, 2, 1, 3] : (tensor<4x4x8x4xf32>) -> tensor<4x8x4x4xf32>
    %82 = stablehlo.dot_general %79, %arg10, batching_dims = [0, 1] x [0, 2], contracting_dims = [3] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x4x8x8xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x4xf32>
    %83 = stablehlo.transpose %82, dims = [0, 2, 1, 3] : (tensor<4x4x8x4xf32>) -> tensor<4x8x4x4xf32>
    %84 = stablehlo.reshape %64 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %85 = stablehlo.dot_general %84, %arg7, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %86 = stablehlo.transpose %85, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %87 = stablehlo.dot_general %84, %arg9, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %88 = stablehlo.reshape %81 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %89 = stablehlo.dot_general %88, %arg7, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %90 = stablehlo.transpose %89, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %91 = stablehlo.dot_general %88, %arg8, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %92 = stablehlo.add %87, %91 : tensor<4x8x16xf32>
    %93 = stablehlo.reshape %83 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %94 = stablehlo.dot_general %93, %arg7, contracting_dims = [0, 1] x [0, 1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<4x8x16xf32>) -> tensor<16x16xf32>
    %95 = stablehlo.transpose %94, dims = [1, 0] : (tensor<16x16xf32>) -> tensor<16x16xf32>
    %96 = stablehlo.dot_general %93, %arg6, contracting_dims = [2] x [1], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %97 = stablehlo.add %92, %96 : tensor<4x8x16xf32>
    %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %98 = stablehlo.reduce(%97 init: %cst_18) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %99 = stablehlo.reshape %98 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %100 = stablehlo.reduce(%99 init: %cst_19) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %101 = stablehlo.multiply %arg5, %97 : tensor<4x8x16xf32>
    %cst_20 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %102 = stablehlo.reduce(%101 init: %cst_20) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<16xf32>
    %103 = stablehlo.reshape %102 : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %104 = stablehlo.broadcast_in_dim %arg4, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %105 = stablehlo.multiply %97, %104 : tensor<4x8x16xf32>
    %cst_21 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %106 = stablehlo.reduce(%103 init: %cst_21) applies stablehlo.add across dimensions = [0, 1] : (tensor<1x1x16xf32>, tensor<f32>) -> tensor<16xf32>
    %107 = stablehlo.multiply %arg3, %105 : tensor<4x8x16xf32>
    %cst_22 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %108 = stablehlo.reduce(%107 init: %cst_22) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %109 = stablehlo.reshape %108 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %110 = stablehlo.broadcast_in_dim %arg2, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %111 = stablehlo.multiply %105, %110 : tensor<4x8x16xf32>
    %112 = stablehlo.multiply %109, %arg1 : tensor<4x8x1xf32>
    %113 = stablehlo.negate %111 : tensor<4x8x16xf32>
    %cst_23 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %114 = stablehlo.reduce(%113 init: %cst_23) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %115 = stablehlo.reshape %114 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %116 = stablehlo.add %56, %111 : tensor<4x8x16xf32>
    %cst_24 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %117 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %118 = stablehlo.divide %112, %117 : tensor<4x8x1xf32>
    %cst_25 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %119 = stablehlo.reduce(%118 init: %cst_25) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %120 = stablehlo.broadcast_in_dim %119, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %121 = stablehlo.multiply %120, %arg0 : tensor<4x8x16xf32>
    %122 = stablehlo.negate %121 : tensor<4x8x16xf32>
    %cst_26 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %123 = stablehlo.reduce(%122 init: %cst_26) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %124 = stablehlo.reshape %123 : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %125 = stablehlo.add %116, %121 : tensor<4x8x16xf32>
    %126 = stablehlo.add %115, %124 : tensor<4x8x1xf32>
    %cst_27 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %127 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %128 = stablehlo.divide %126, %127 : tensor<4x8x1xf32>
    %cst_28 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %129 = stablehlo.reduce(%128 init: %cst_28) applies stablehlo.add across dimensions = [2] : (tensor<4x8x1xf32>, tensor<f32>) -> tensor<4x8xf32>
    %130 = stablehlo.broadcast_in_dim %129, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x16xf32>
    %131 = stablehlo.add %125, %130 : tensor<4x8x16xf32>
    return %100, %25, %19, %1, %106, %31, %90, %58, %95, %21, %86, %131 : tensor<16xf32>, tensor<16xf32>, tensor<64xf32>, tensor<64x16xf32>, tensor<16xf32>, tensor<16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x16xf32>, tensor<16x64xf32>, tensor<16x16xf32>, tensor<4x8x16xf32>
  }
  func.func private @_where_3(%arg0: tensor<4x4x8x8xi1>, %arg1: tensor<4x4x8x8xf32>) -> tensor<4x4x8x8xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %1 = stablehlo.select %arg0, %arg1, %0 : tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>
    return %1 : tensor<4x4x8x8xf32>
  }
}
