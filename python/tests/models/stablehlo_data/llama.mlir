module @jit_llama attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16xf32> loc("p['g']"), %arg1: tensor<16x32xf32> loc("p['head']"), %arg2: tensor<24x16xf32> loc("p['layers'][0]['down']"), %arg3: tensor<16xf32> loc("p['layers'][0]['g1']"), %arg4: tensor<16xf32> loc("p['layers'][0]['g2']"), %arg5: tensor<16x24xf32> loc("p['layers'][0]['gate']"), %arg6: tensor<16x8xf32> loc("p['layers'][0]['k']"), %arg7: tensor<16x16xf32> loc("p['layers'][0]['o']"), %arg8: tensor<16x16xf32> loc("p['layers'][0]['q']"), %arg9: tensor<16x24xf32> loc("p['layers'][0]['up']"), %arg10: tensor<16x8xf32> loc("p['layers'][0]['v']"), %arg11: tensor<24x16xf32> loc("p['layers'][1]['down']"), %arg12: tensor<16xf32> loc("p['layers'][1]['g1']"), %arg13: tensor<16xf32> loc("p['layers'][1]['g2']"), %arg14: tensor<16x24xf32> loc("p['layers'][1]['gate']"), %arg15: tensor<16x8xf32> loc("p['layers'][1]['k']"), %arg16: tensor<16x16xf32> loc("p['layers'][1]['o']"), %arg17: tensor<16x16xf32> loc("p['layers'][1]['q']"), %arg18: tensor<16x24xf32> loc("p['layers'][1]['up']"), %arg19: tensor<16x8xf32> loc("p['layers'][1]['v']"), %arg20: tensor<32x16xf32> loc("p['wte']"), %arg21: tensor<4x8xi32> loc("ids")) -> (tensor<4x8x32xf32> {jax.result_info = "result"}) {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.broadcast_in_dim %c, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %1 = stablehlo.compare LT, %arg21, %0, SIGNED : (tensor<4x8xi32>, tensor<4x8xi32>) -> tensor<4x8xi1>
    %c_0 = stablehlo.constant dense<32> : tensor<i32>
    %2 = stablehlo.broadcast_in_dim %c_0, dims = [] : (tensor<i32>) -> tensor<4x8xi32>
    %3 = stablehlo.add %arg21, %2 : tensor<4x8xi32>
    %4 = stablehlo.select %1, %3, %arg21 : tensor<4x8xi1>, tensor<4x8xi32>
    %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<4x8xi32>) -> tensor<4x8x1xi32>
    %6 = "stablehlo.gather"(%arg20, %5) <{dimension_numbers = #stablehlo.gather<offset_dims = [2], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 2>, indices_are_sorted = false, slice_sizes = array<i64: 1, 16>}> : (tensor<32x16xf32>, tensor<4x8x1xi32>) -> tensor<4x8x16xf32>
    %7 = stablehlo.multiply %6, %6 : tensor<4x8x16xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %8 = stablehlo.reduce(%7 init: %cst) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_1 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %10 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %11 = stablehlo.divide %9, %10 : tensor<4x8x1xf32>
    %cst_2 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_2, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %13 = stablehlo.add %11, %12 : tensor<4x8x1xf32>
    %14 = stablehlo.rsqrt %13 : tensor<4x8x1xf32>
    %15 = stablehlo.broadcast_in_dim %14, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %16 = stablehlo.multiply %6, %15 : tensor<4x8x16xf32>
    %17 = stablehlo.broadcast_in_dim %arg3, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %18 = stablehlo.broadcast_in_dim %17, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %19 = stablehlo.multiply %16, %18 : tensor<4x8x16xf32>
    %20 = stablehlo.dot_general %19, %arg8, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %21 = stablehlo.reshape %20 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %22 = stablehlo.iota dim = 0 : tensor<8xi32>
    %23 = stablehlo.iota dim = 0 : tensor<2xi32>
    %c_3 = stablehlo.constant dense<2> : tensor<i32>
    %24 = stablehlo.broadcast_in_dim %c_3, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %25 = stablehlo.multiply %24, %23 : tensor<2xi32>
    %c_4 = stablehlo.constant dense<0> : tensor<i32>
    %26 = stablehlo.broadcast_in_dim %c_4, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %27 = stablehlo.add %26, %25 : tensor<2xi32>
    %28 = stablehlo.convert %27 : (tensor<2xi32>) -> tensor<2xf32>
    %cst_5 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %29 = stablehlo.broadcast_in_dim %cst_5, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %30 = stablehlo.divide %28, %29 : tensor<2xf32>
    %cst_6 = stablehlo.constant dense<1.000000e+04> : tensor<f32>
    %31 = stablehlo.broadcast_in_dim %cst_6, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %32 = stablehlo.power %31, %30 : tensor<2xf32>
    %cst_7 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %33 = stablehlo.broadcast_in_dim %cst_7, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %34 = stablehlo.divide %33, %32 : tensor<2xf32>
    %35 = stablehlo.convert %22 : (tensor<8xi32>) -> tensor<8xf32>
    %36 = stablehlo.broadcast_in_dim %35, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %37 = stablehlo.broadcast_in_dim %34, dims = [1] : (tensor<2xf32>) -> tensor<1x2xf32>
    %38 = stablehlo.broadcast_in_dim %36, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x2xf32>
    %39 = stablehlo.broadcast_in_dim %37, dims = [0, 1] : (tensor<1x2xf32>) -> tensor<8x2xf32>
    %40 = stablehlo.multiply %38, %39 : tensor<8x2xf32>
    %41 = stablehlo.cosine %40 : tensor<8x2xf32>
    %42 = stablehlo.broadcast_in_dim %41, dims = [1, 3] : (tensor<8x2xf32>) -> tensor<1x8x1x2xf32>
    %43 = stablehlo.sine %40 : tensor<8x2xf32>
    %44 = stablehlo.broadcast_in_dim %43, dims = [1, 3] : (tensor<8x2xf32>) -> tensor<1x8x1x2xf32>
    %45 = stablehlo.slice %21 [0:4, 0:8, 0:4, 0:4:2] : (tensor<4x8x4x4xf32>) -> tensor<4x8x4x2xf32>
    %46 = stablehlo.slice %21 [0:4, 0:8, 0:4, 1:4:2] : (tensor<4x8x4x4xf32>) -> tensor<4x8x4x2xf32>
    %47 = stablehlo.broadcast_in_dim %42, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x4x2xf32>
    %48 = stablehlo.multiply %45, %47 : tensor<4x8x4x2xf32>
    %49 = stablehlo.broadcast_in_dim %44, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x4x2xf32>
    %50 = stablehlo.multiply %46, %49 : tensor<4x8x4x2xf32>
    %51 = stablehlo.subtract %48, %50 : tensor<4x8x4x2xf32>
    %52 = stablehlo.broadcast_in_dim %44, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x4x2xf32>
    %53 = stablehlo.multiply %45, %52 : tensor<4x8x4x2xf32>
    %54 = stablehlo.broadcast_in_dim %42, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x4x2xf32>
    %55 = stablehlo.multiply %46, %54 : tensor<4x8x4x2xf32>
    %56 = stablehlo.add %53, %55 : tensor<4x8x4x2xf32>
    %57 = stablehlo.broadcast_in_dim %51, dims = [0, 1, 2, 3] : (tensor<4x8x4x2xf32>) -> tensor<4x8x4x2x1xf32>
    %58 = stablehlo.broadcast_in_dim %56, dims = [0, 1, 2, 3] : (tensor<4x8x4x2xf32>) -> tensor<4x8x4x2x1xf32>
    %59 = stablehlo.concatenate %57, %58, dim = 4 : (tensor<4x8x4x2x1xf32>, tensor<4x8x4x2x1xf32>) -> tensor<4x8x4x2x2xf32>
    %60 = stablehlo.reshape %59 : (tensor<4x8x4x2x2xf32>) -> tensor<4x8x4x4xf32>
    %61 = stablehlo.dot_general %19, %arg6, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x8xf32>) -> tensor<4x8x8xf32>
    %62 = stablehlo.reshape %61 : (tensor<4x8x8xf32>) -> tensor<4x8x2x4xf32>
    %63 = stablehlo.iota dim = 0 : tensor<8xi32>
    %64 = stablehlo.iota dim = 0 : tensor<2xi32>
    %c_8 = stablehlo.constant dense<2> : tensor<i32>
    %65 = stablehlo.broadcast_in_dim %c_8, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %66 = stablehlo.multiply %65, %64 : tensor<2xi32>
    %c_9 = stablehlo.constant dense<0> : tensor<i32>
    %67 = stablehlo.broadcast_in_dim %c_9, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %68 = stablehlo.add %67, %66 : tensor<2xi32>
    %69 = stablehlo.convert %68 : (tensor<2xi32>) -> tensor<2xf32>
    %cst_10 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %70 = stablehlo.broadcast_in_dim %cst_10, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %71 = stablehlo.divide %69, %70 : tensor<2xf32>
    %cst_11 = stablehlo.constant dense<1.000000e+04> : tensor<f32>
    %72 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %73 = stablehlo.power %72, %71 : tensor<2xf32>
    %cst_12 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %74 = stablehlo.broadcast_in_dim %cst_12, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %75 = stablehlo.divide %74, %73 : tensor<2xf32>
    %76 = stablehlo.convert %63 : (tensor<8xi32>) -> tensor<8xf32>
    %77 = stablehlo.broadcast_in_dim %76, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %78 = stablehlo.broadcast_in_dim %75, dims = [1] : (tensor<2xf32>) -> tensor<1x2xf32>
    %79 = stablehlo.broadcast_in_dim %77, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x2xf32>
    %80 = stablehlo.broadcast_in_dim %78, dims = [0, 1] : (tensor<1x2xf32>) -> tensor<8x2xf32>
    %81 = stablehlo.multiply %79, %80 : tensor<8x2xf32>
    %82 = stablehlo.cosine %81 : tensor<8x2xf32>
    %83 = stablehlo.broadcast_in_dim %82, dims = [1, 3] : (tensor<8x2xf32>) -> tensor<1x8x1x2xf32>
    %84 = stablehlo.sine %81 : tensor<8x2xf32>
    %85 = stablehlo.broadcast_in_dim %84, dims = [1, 3] : (tensor<8x2xf32>) -> tensor<1x8x1x2xf32>
    %86 = stablehlo.slice %62 [0:4, 0:8, 0:2, 0:4:2] : (tensor<4x8x2x4xf32>) -> tensor<4x8x2x2xf32>
    %87 = stablehlo.slice %62 [0:4, 0:8, 0:2, 1:4:2] : (tensor<4x8x2x4xf32>) -> tensor<4x8x2x2xf32>
    %88 = stablehlo.broadcast_in_dim %83, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x2x2xf32>
    %89 = stablehlo.multiply %86, %88 : tensor<4x8x2x2xf32>
    %90 = stablehlo.broadcast_in_dim %85, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x2x2xf32>
    %91 = stablehlo.multiply %87, %90 : tensor<4x8x2x2xf32>
    %92 = stablehlo.subtract %89, %91 : tensor<4x8x2x2xf32>
    %93 = stablehlo.broadcast_in_dim %85, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x2x2xf32>
    %94 = stablehlo.multiply %86, %93 : tensor<4x8x2x2xf32>
    %95 = stablehlo.broadcast_in_dim %83, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x2x2xf32>
    %96 = stablehlo.multiply %87, %95 : tensor<4x8x2x2xf32>
    %97 = stablehlo.add %94, %96 : tensor<4x8x2x2xf32>
    %98 = stablehlo.broadcast_in_dim %92, dims = [0, 1, 2, 3] : (tensor<4x8x2x2xf32>) -> tensor<4x8x2x2x1xf32>
    %99 = stablehlo.broadcast_in_dim %97, dims = [0, 1, 2, 3] : (tensor<4x8x2x2xf32>) -> tensor<4x8x2x2x1xf32>
    %100 = stablehlo.concatenate %98, %99, dim = 4 : (tensor<4x8x2x2x1xf32>, tensor<4x8x2x2x1xf32>) -> tensor<4x8x2x2x2xf32>
    %101 = stablehlo.reshape %100 : (tensor<4x8x2x2x2xf32>) -> tensor<4x8x2x4xf32>
    %102 = stablehlo.dot_general %19, %arg10, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x8xf32>) -> tensor<4x8x8xf32>
    %103 = stablehlo.reshape %102 : (tensor<4x8x8xf32>) -> tensor<4x8x2x4xf32>
    %104 = stablehlo.broadcast_in_dim %101, dims = [0, 1, 2, 4] : (tensor<4x8x2x4xf32>) -> tensor<4x8x2x2x4xf32>
    %105 = stablehlo.reshape %104 : (tensor<4x8x2x2x4xf32>) -> tensor<4x8x4x4xf32>
    %106 = stablehlo.broadcast_in_dim %103, dims = [0, 1, 2, 4] : (tensor<4x8x2x4xf32>) -> tensor<4x8x2x2x4xf32>
    %107 = stablehlo.reshape %106 : (tensor<4x8x2x2x4xf32>) -> tensor<4x8x4x4xf32>
    %108 = stablehlo.dot_general %60, %105, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x8xf32>
    %cst_13 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %109 = stablehlo.broadcast_in_dim %cst_13, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %110 = stablehlo.divide %108, %109 : tensor<4x4x8x8xf32>
    %c_14 = stablehlo.constant dense<true> : tensor<i1>
    %111 = stablehlo.broadcast_in_dim %c_14, dims = [] : (tensor<i1>) -> tensor<8x8xi1>
    %112 = call @tril(%111) : (tensor<8x8xi1>) -> tensor<8x8xi1>
    %cst_15 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %113 = call @_where(%112, %110, %cst_15) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8x8xf32>
    %cst_16 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %114 = stablehlo.reduce(%113 init: %cst_16) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %cst_17 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %115 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<4x4x8xf32>
    %116 = stablehlo.maximum %115, %114 : tensor<4x4x8xf32>
    %117 = stablehlo.broadcast_in_dim %116, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %118 = stablehlo.broadcast_in_dim %117, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %119 = stablehlo.subtract %113, %118 : tensor<4x4x8x8xf32>
    %120 = stablehlo.exponential %119 : tensor<4x4x8x8xf32>
    %cst_18 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %121 = stablehlo.reduce(%120 init: %cst_18) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %122 = stablehlo.broadcast_in_dim %121, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %123 = stablehlo.broadcast_in_dim %122, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %124 = stablehlo.divide %120, %123 : tensor<4x4x8x8xf32>
    %125 = stablehlo.dot_general %107, %124, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x4x8xf32>
    %126 = stablehlo.transpose %125, dims = [0, 3, 1, 2] : (tensor<4x4x4x8xf32>) -> tensor<4x8x4x4xf32>
    %127 = stablehlo.reshape %126 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %128 = stablehlo.dot_general %127, %arg7, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %129 = stablehlo.add %6, %128 : tensor<4x8x16xf32>
    %130 = stablehlo.multiply %129, %129 : tensor<4x8x16xf32>
    %cst_19 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %131 = stablehlo.reduce(%130 init: %cst_19) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %132 = stablehlo.broadcast_in_dim %131, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_20 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %133 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %134 = stablehlo.divide %132, %133 : tensor<4x8x1xf32>
    %cst_21 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %135 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %136 = stablehlo.add %134, %135 : tensor<4x8x1xf32>
    %137 = stablehlo.rsqrt %136 : tensor<4x8x1xf32>
    %138 = stablehlo.broadcast_in_dim %137, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %139 = stablehlo.multiply %129, %138 : tensor<4x8x16xf32>
    %140 = stablehlo.broadcast_in_dim %arg4, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %141 = stablehlo.broadcast_in_dim %140, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %142 = stablehlo.multiply %139, %141 : tensor<4x8x16xf32>
    %143 = stablehlo.dot_general %142, %arg5, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x24xf32>) -> tensor<4x8x24xf32>
    %144 = call @silu(%143) : (tensor<4x8x24xf32>) -> tensor<4x8x24xf32>
    %145 = stablehlo.dot_general %142, %arg9, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x24xf32>) -> tensor<4x8x24xf32>
    %146 = stablehlo.multiply %144, %145 : tensor<4x8x24xf32>
    %147 = stablehlo.dot_general %146, %arg2, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x24xf32>, tensor<24x16xf32>) -> tensor<4x8x16xf32>
    %148 = stablehlo.add %129, %147 : tensor<4x8x16xf32>
    %149 = stablehlo.multiply %148, %148 : tensor<4x8x16xf32>
    %cst_22 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %150 = stablehlo.reduce(%149 init: %cst_22) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %151 = stablehlo.broadcast_in_dim %150, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_23 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %152 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %153 = stablehlo.divide %151, %152 : tensor<4x8x1xf32>
    %cst_24 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %154 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %155 = stablehlo.add %153, %154 : tensor<4x8x1xf32>
    %156 = stablehlo.rsqrt %155 : tensor<4x8x1xf32>
    %157 = stablehlo.broadcast_in_dim %156, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %158 = stablehlo.multiply %148, %157 : tensor<4x8x16xf32>
    %159 = stablehlo.broadcast_in_dim %arg12, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %160 = stablehlo.broadcast_in_dim %159, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %161 = stablehlo.multiply %158, %160 : tensor<4x8x16xf32>
    %162 = stablehlo.dot_general %161, %arg17, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %163 = stablehlo.reshape %162 : (tensor<4x8x16xf32>) -> tensor<4x8x4x4xf32>
    %164 = stablehlo.iota dim = 0 : tensor<8xi32>
    %165 = stablehlo.iota dim = 0 : tensor<2xi32>
    %c_25 = stablehlo.constant dense<2> : tensor<i32>
    %166 = stablehlo.broadcast_in_dim %c_25, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %167 = stablehlo.multiply %166, %165 : tensor<2xi32>
    %c_26 = stablehlo.constant dense<0> : tensor<i32>
    %168 = stablehlo.broadcast_in_dim %c_26, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %169 = stablehlo.add %168, %167 : tensor<2xi32>
    %170 = stablehlo.convert %169 : (tensor<2xi32>) -> tensor<2xf32>
    %cst_27 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %171 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %172 = stablehlo.divide %170, %171 : tensor<2xf32>
    %cst_28 = stablehlo.constant dense<1.000000e+04> : tensor<f32>
    %173 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %174 = stablehlo.power %173, %172 : tensor<2xf32>
    %cst_29 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %175 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %176 = stablehlo.divide %175, %174 : tensor<2xf32>
    %177 = stablehlo.convert %164 : (tensor<8xi32>) -> tensor<8xf32>
    %178 = stablehlo.broadcast_in_dim %177, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %179 = stablehlo.broadcast_in_dim %176, dims = [1] : (tensor<2xf32>) -> tensor<1x2xf32>
    %180 = stablehlo.broadcast_in_dim %178, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x2xf32>
    %181 = stablehlo.broadcast_in_dim %179, dims = [0, 1] : (tensor<1x2xf32>) -> tensor<8x2xf32>
    %182 = stablehlo.multiply %180, %181 : tensor<8x2xf32>
    %183 = stablehlo.cosine %182 : tensor<8x2xf32>
    %184 = stablehlo.broadcast_in_dim %183, dims = [1, 3] : (tensor<8x2xf32>) -> tensor<1x8x1x2xf32>
    %185 = stablehlo.sine %182 : tensor<8x2xf32>
    %186 = stablehlo.broadcast_in_dim %185, dims = [1, 3] : (tensor<8x2xf32>) -> tensor<1x8x1x2xf32>
    %187 = stablehlo.slice %163 [0:4, 0:8, 0:4, 0:4:2] : (tensor<4x8x4x4xf32>) -> tensor<4x8x4x2xf32>
    %188 = stablehlo.slice %163 [0:4, 0:8, 0:4, 1:4:2] : (tensor<4x8x4x4xf32>) -> tensor<4x8x4x2xf32>
    %189 = stablehlo.broadcast_in_dim %184, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x4x2xf32>
    %190 = stablehlo.multiply %187, %189 : tensor<4x8x4x2xf32>
    %191 = stablehlo.broadcast_in_dim %186, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x4x2xf32>
    %192 = stablehlo.multiply %188, %191 : tensor<4x8x4x2xf32>
    %193 = stablehlo.subtract %190, %192 : tensor<4x8x4x2xf32>
    %194 = stablehlo.broadcast_in_dim %186, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x4x2xf32>
    %195 = stablehlo.multiply %187, %194 : tensor<4x8x4x2xf32>
    %196 = stablehlo.broadcast_in_dim %184, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x4x2xf32>
    %197 = stablehlo.multiply %188, %196 : tensor<4x8x4x2xf32>
    %198 = stablehlo.add %195, %197 : tensor<4x8x4x2xf32>
    %199 = stablehlo.broadcast_in_dim %193, dims = [0, 1, 2, 3] : (tensor<4x8x4x2xf32>) -> tensor<4x8x4x2x1xf32>
    %200 = stablehlo.broadcast_in_dim %198, dims = [0, 1, 2, 3] : (tensor<4x8x4x2xf32>) -> tensor<4x8x4x2x1xf32>
    %201 = stablehlo.concatenate %199, %200, dim = 4 : (tensor<4x8x4x2x1xf32>, tensor<4x8x4x2x1xf32>) -> tensor<4x8x4x2x2xf32>
    %202 = stablehlo.reshape %201 : (tensor<4x8x4x2x2xf32>) -> tensor<4x8x4x4xf32>
    %203 = stablehlo.dot_general %161, %arg15, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x8xf32>) -> tensor<4x8x8xf32>
    %204 = stablehlo.reshape %203 : (tensor<4x8x8xf32>) -> tensor<4x8x2x4xf32>
    %205 = stablehlo.iota dim = 0 : tensor<8xi32>
    %206 = stablehlo.iota dim = 0 : tensor<2xi32>
    %c_30 = stablehlo.constant dense<2> : tensor<i32>
    %207 = stablehlo.broadcast_in_dim %c_30, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %208 = stablehlo.multiply %207, %206 : tensor<2xi32>
    %c_31 = stablehlo.constant dense<0> : tensor<i32>
    %209 = stablehlo.broadcast_in_dim %c_31, dims = [] : (tensor<i32>) -> tensor<2xi32>
    %210 = stablehlo.add %209, %208 : tensor<2xi32>
    %211 = stablehlo.convert %210 : (tensor<2xi32>) -> tensor<2xf32>
    %cst_32 = stablehlo.constant dense<4.000000e+00> : tensor<f32>
    %212 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %213 = stablehlo.divide %211, %212 : tensor<2xf32>
    %cst_33 = stablehlo.constant dense<1.000000e+04> : tensor<f32>
    %214 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %215 = stablehlo.power %214, %213 : tensor<2xf32>
    %cst_34 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %216 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<2xf32>
    %217 = stablehlo.divide %216, %215 : tensor<2xf32>
    %218 = stablehlo.convert %205 : (tensor<8xi32>) -> tensor<8xf32>
    %219 = stablehlo.broadcast_in_dim %218, dims = [0] : (tensor<8xf32>) -> tensor<8x1xf32>
    %220 = stablehlo.broadcast_in_dim %217, dims = [1] : (tensor<2xf32>) -> tensor<1x2xf32>
    %221 = stablehlo.broadcast_in_dim %219, dims = [0, 1] : (tensor<8x1xf32>) -> tensor<8x2xf32>
    %222 = stablehlo.broadcast_in_dim %220, dims = [0, 1] : (tensor<1x2xf32>) -> tensor<8x2xf32>
    %223 = stablehlo.multiply %221, %222 : tensor<8x2xf32>
    %224 = stablehlo.cosine %223 : tensor<8x2xf32>
    %225 = stablehlo.broadcast_in_dim %224, dims = [1, 3] : (tensor<8x2xf32>) -> tensor<1x8x1x2xf32>
    %226 = stablehlo.sine %223 : tensor<8x2xf32>
    %227 = stablehlo.broadcast_in_dim %226, dims = [1, 3] : (tensor<8x2xf32>) -> tensor<1x8x1x2xf32>
    %228 = stablehlo.slice %204 [0:4, 0:8, 0:2, 0:4:2] : (tensor<4x8x2x4xf32>) -> tensor<4x8x2x2xf32>
    %229 = stablehlo.slice %204 [0:4, 0:8, 0:2, 1:4:2] : (tensor<4x8x2x4xf32>) -> tensor<4x8x2x2xf32>
    %230 = stablehlo.broadcast_in_dim %225, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x2x2xf32>
    %231 = stablehlo.multiply %228, %230 : tensor<4x8x2x2xf32>
    %232 = stablehlo.broadcast_in_dim %227, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x2x2xf32>
    %233 = stablehlo.multiply %229, %232 : tensor<4x8x2x2xf32>
    %234 = stablehlo.subtract %231, %233 : tensor<4x8x2x2xf32>
    %235 = stablehlo.broadcast_in_dim %227, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x2x2xf32>
    %236 = stablehlo.multiply %228, %235 : tensor<4x8x2x2xf32>
    %237 = stablehlo.broadcast_in_dim %225, dims = [0, 1, 2, 3] : (tensor<1x8x1x2xf32>) -> tensor<4x8x2x2xf32>
    %238 = stablehlo.multiply %229, %237 : tensor<4x8x2x2xf32>
    %239 = stablehlo.add %236, %238 : tensor<4x8x2x2xf32>
    %240 = stablehlo.broadcast_in_dim %234, dims = [0, 1, 2, 3] : (tensor<4x8x2x2xf32>) -> tensor<4x8x2x2x1xf32>
    %241 = stablehlo.broadcast_in_dim %239, dims = [0, 1, 2, 3] : (tensor<4x8x2x2xf32>) -> tensor<4x8x2x2x1xf32>
    %242 = stablehlo.concatenate %240, %241, dim = 4 : (tensor<4x8x2x2x1xf32>, tensor<4x8x2x2x1xf32>) -> tensor<4x8x2x2x2xf32>
    %243 = stablehlo.reshape %242 : (tensor<4x8x2x2x2xf32>) -> tensor<4x8x2x4xf32>
    %244 = stablehlo.dot_general %161, %arg19, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x8xf32>) -> tensor<4x8x8xf32>
    %245 = stablehlo.reshape %244 : (tensor<4x8x8xf32>) -> tensor<4x8x2x4xf32>
    %246 = stablehlo.broadcast_in_dim %243, dims = [0, 1, 2, 4] : (tensor<4x8x2x4xf32>) -> tensor<4x8x2x2x4xf32>
    %247 = stablehlo.reshape %246 : (tensor<4x8x2x2x4xf32>) -> tensor<4x8x4x4xf32>
    %248 = stablehlo.broadcast_in_dim %245, dims = [0, 1, 2, 4] : (tensor<4x8x2x4xf32>) -> tensor<4x8x2x2x4xf32>
    %249 = stablehlo.reshape %248 : (tensor<4x8x2x2x4xf32>) -> tensor<4x8x4x4xf32>
    %250 = stablehlo.dot_general %202, %247, batching_dims = [0, 2] x [0, 2], contracting_dims = [3] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x8x4x4xf32>) -> tensor<4x4x8x8xf32>
    %cst_35 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %251 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %252 = stablehlo.divide %250, %251 : tensor<4x4x8x8xf32>
    %c_36 = stablehlo.constant dense<true> : tensor<i1>
    %253 = stablehlo.broadcast_in_dim %c_36, dims = [] : (tensor<i1>) -> tensor<8x8xi1>
    %254 = call @tril(%253) : (tensor<8x8xi1>) -> tensor<8x8xi1>
    %cst_37 = stablehlo.constant dense<-1.000000e+09> : tensor<f32>
    %255 = call @_where(%254, %252, %cst_37) : (tensor<8x8xi1>, tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8x8xf32>
    %cst_38 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %256 = stablehlo.reduce(%255 init: %cst_38) applies stablehlo.maximum across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %cst_39 = stablehlo.constant dense<0xFF800000> : tensor<f32>
    %257 = stablehlo.broadcast_in_dim %cst_39, dims = [] : (tensor<f32>) -> tensor<4x4x8xf32>
    %258 = stablehlo.maximum %257, %256 : tensor<4x4x8xf32>
    %259 = stablehlo.broadcast_in_dim %258, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %260 = stablehlo.broadcast_in_dim %259, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %261 = stablehlo.subtract %255, %260 : tensor<4x4x8x8xf32>
    %262 = stablehlo.exponential %261 : tensor<4x4x8x8xf32>
    %cst_40 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %263 = stablehlo.reduce(%262 init: %cst_40) applies stablehlo.add across dimensions = [3] : (tensor<4x4x8x8xf32>, tensor<f32>) -> tensor<4x4x8xf32>
    %264 = stablehlo.broadcast_in_dim %263, dims = [0, 1, 2] : (tensor<4x4x8xf32>) -> tensor<4x4x8x1xf32>
    %265 = stablehlo.broadcast_in_dim %264, dims = [0, 1, 2, 3] : (tensor<4x4x8x1xf32>) -> tensor<4x4x8x8xf32>
    %266 = stablehlo.divide %262, %265 : tensor<4x4x8x8xf32>
    %267 = stablehlo.dot_general %249, %266, batching_dims = [0, 2] x [0, 1], contracting_dims = [1] x [3], precision = [DEFAULT, DEFAULT] : (tensor<4x8x4x4xf32>, tensor<4x4x8x8xf32>) -> tensor<4x4x4x8xf32>
    %268 = stablehlo.transpose %267, dims = [0, 3, 1, 2] : (tensor<4x4x4x8xf32>) -> tensor<4x8x4x4xf32>
    %269 = stablehlo.reshape %268 : (tensor<4x8x4x4xf32>) -> tensor<4x8x16xf32>
    %270 = stablehlo.dot_general %269, %arg16, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x16xf32>) -> tensor<4x8x16xf32>
    %271 = stablehlo.add %148, %270 : tensor<4x8x16xf32>
    %272 = stablehlo.multiply %271, %271 : tensor<4x8x16xf32>
    %cst_41 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %273 = stablehlo.reduce(%272 init: %cst_41) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %274 = stablehlo.broadcast_in_dim %273, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_42 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %275 = stablehlo.broadcast_in_dim %cst_42, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %276 = stablehlo.divide %274, %275 : tensor<4x8x1xf32>
    %cst_43 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %277 = stablehlo.broadcast_in_dim %cst_43, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %278 = stablehlo.add %276, %277 : tensor<4x8x1xf32>
    %279 = stablehlo.rsqrt %278 : tensor<4x8x1xf32>
    %280 = stablehlo.broadcast_in_dim %279, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %281 = stablehlo.multiply %271, %280 : tensor<4x8x16xf32>
    %282 = stablehlo.broadcast_in_dim %arg13, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %283 = stablehlo.broadcast_in_dim %282, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %284 = stablehlo.multiply %281, %283 : tensor<4x8x16xf32>
    %285 = stablehlo.dot_general %284, %arg14, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x24xf32>) -> tensor<4x8x24xf32>
    %286 = call @silu(%285) : (tensor<4x8x24xf32>) -> tensor<4x8x24xf32>
    %287 = stablehlo.dot_general %284, %arg18, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x24xf32>) -> tensor<4x8x24xf32>
    %288 = stablehlo.multiply %286, %287 : tensor<4x8x24xf32>
    %289 = stablehlo.dot_general %288, %arg11, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x24xf32>, tensor<24x16xf32>) -> tensor<4x8x16xf32>
    %290 = stablehlo.add %271, %289 : tensor<4x8x16xf32>
    %291 = stablehlo.multiply %290, %290 : tensor<4x8x16xf32>
    %cst_44 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %292 = stablehlo.reduce(%291 init: %cst_44) applies stablehlo.add across dimensions = [2] : (tensor<4x8x16xf32>, tensor<f32>) -> tensor<4x8xf32>
    %293 = stablehlo.broadcast_in_dim %292, dims = [0, 1] : (tensor<4x8xf32>) -> tensor<4x8x1xf32>
    %cst_45 = stablehlo.constant dense<1.600000e+01> : tensor<f32>
    %294 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %295 = stablehlo.divide %293, %294 : tensor<4x8x1xf32>
    %cst_46 = stablehlo.constant dense<9.99999974E-6> : tensor<f32>
    %296 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<4x8x1xf32>
    %297 = stablehlo.add %295, %296 : tensor<4x8x1xf32>
    %298 = stablehlo.rsqrt %297 : tensor<4x8x1xf32>
    %299 = stablehlo.broadcast_in_dim %298, dims = [0, 1, 2] : (tensor<4x8x1xf32>) -> tensor<4x8x16xf32>
    %300 = stablehlo.multiply %290, %299 : tensor<4x8x16xf32>
    %301 = stablehlo.broadcast_in_dim %arg0, dims = [2] : (tensor<16xf32>) -> tensor<1x1x16xf32>
    %302 = stablehlo.broadcast_in_dim %301, dims = [0, 1, 2] : (tensor<1x1x16xf32>) -> tensor<4x8x16xf32>
    %303 = stablehlo.multiply %300, %302 : tensor<4x8x16xf32>
    %304 = stablehlo.dot_general %303, %arg1, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<4x8x16xf32>, tensor<16x32xf32>) -> tensor<4x8x32xf32>
    return %304 : tensor<4x8x32xf32>
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
  func.func private @_where(%arg0: tensor<8x8xi1>, %arg1: tensor<4x4x8x8xf32>, %arg2: tensor<f32>) -> tensor<4x4x8x8xf32> {
    %0 = stablehlo.convert %arg2 : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %arg0, dims = [2, 3] : (tensor<8x8xi1>) -> tensor<4x4x8x8xi1>
    %2 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<4x4x8x8xf32>
    %3 = stablehlo.select %1, %arg1, %2 : tensor<4x4x8x8xi1>, tensor<4x4x8x8xf32>
    return %3 : tensor<4x4x8x8xf32>
  }
  func.func private @silu(%arg0: tensor<4x8x24xf32>) -> tensor<4x8x24xf32> {
    %0 = stablehlo.negate %arg0 : tensor<4x8x24xf32>
    %1 = stablehlo.exponential %0 : tensor<4x8x24xf32>
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %2 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x8x24xf32>
    %3 = stablehlo.add %2, %1 : tensor<4x8x24xf32>
    %cst_0 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<4x8x24xf32>
    %5 = stablehlo.divide %4, %3 : tensor<4x8x24xf32>
    %6 = stablehlo.multiply %arg0, %5 : tensor<4x8x24xf32>
    return %6 : tensor<4x8x24xf32>
  }
}
