module @jit__adam attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<16x32xf32> loc("p[0][0]"), %arg1: tensor<32xf32> loc("p[0][1]"), %arg2: tensor<32x32xf32> loc("p[1][0]"), %arg3: tensor<32xf32> loc("p[1][1]"), %arg4: tensor<32x8xf32> loc("p[2][0]"), %arg5: tensor<8xf32> loc("p[2][1]"), %arg6: tensor<16x32xf32> loc("m[0][0]"), %arg7: tensor<32xf32> loc("m[0][1]"), %arg8: tensor<32x32xf32> loc("m[1][0]"), %arg9: tensor<32xf32> loc("m[1][1]"), %arg10: tensor<32x8xf32> loc("m[2][0]"), %arg11: tensor<8xf32> loc("m[2][1]"), %arg12: tensor<16x32xf32> loc("v[0][0]"), %arg13: tensor<32xf32> loc("v[0][1]"), %arg14: tensor<32x32xf32> loc("v[1][0]"), %arg15: tensor<32xf32> loc("v[1][1]"), %arg16: tensor<32x8xf32> loc("v[2][0]"), %arg17: tensor<8xf32> loc("v[2][1]"), %arg18: tensor<f32> loc("t"), %arg19: tensor<8x16xf32> loc("data[0]")) -> (tensor<f32> {jax.result_info = "result[0]"}, tensor<16x32xf32> {jax.result_info = "result[1][0][0]"}, tensor<32xf32> {jax.result_info = "result[1][0][1]"}, tensor<32x32xf32> {jax.result_info = "result[1][1][0]"}, tensor<32xf32> {jax.result_info = "result[1][1][1]"}, tensor<32x8xf32> {jax.result_info = "result[1][2][0]"}, tensor<8xf32> {jax.result_info = "result[1][2][1]"}, tensor<16x32xf32> {jax.result_info = "result[2][0][0]"}, tensor<32xf32> {jax.result_info = "result[2][0][1]"}, tensor<32x32xf32> {jax.result_info = "result[2][1][0]"}, tensor<32xf32> {jax.result_info = "result[2][1][1]"}, tensor<32x8xf32> {jax.result_info = "result[2][2][0]"}, tensor<8xf32> {jax.result_info = "result[2][2][1]"}, tensor<16x32xf32> {jax.result_info = "result[3][0][0]"}, tensor<32xf32> {jax.result_info = "result[3][0][1]"}, tensor<32x32xf32> {jax.result_info = "result[3][1][0]"}, tensor<32xf32> {jax.result_info = "result[3][1][1]"}, tensor<32x8xf32> {jax.result_info = "result[3][2][0]"}, tensor<8xf32> {jax.result_info = "result[3][2][1]"}, tensor<f32> {jax.result_info = "result[4]"}) {
    %0 = stablehlo.dot_general %arg19, %arg0, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x16xf32>, tensor<16x32xf32>) -> tensor<8x32xf32>
    %1 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : (tensor<1x32xf32>) -> tensor<8x32xf32>
    %3 = stablehlo.add %0, %2 : tensor<8x32xf32>
    %4 = call @relu(%3) : (tensor<8x32xf32>) -> tensor<8x32xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %5 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %6 = stablehlo.compare GT, %3, %5, FLOAT : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<8x32xi1>
    %7 = stablehlo.dot_general %4, %arg2, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
    %8 = stablehlo.broadcast_in_dim %arg3, dims = [1] : (tensor<32xf32>) -> tensor<1x32xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<1x32xf32>) -> tensor<8x32xf32>
    %10 = stablehlo.add %7, %9 : tensor<8x32xf32>
    %11 = call @relu(%10) : (tensor<8x32xf32>) -> tensor<8x32xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %12 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %13 = stablehlo.compare GT, %10, %12, FLOAT : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<8x32xi1>
    %14 = stablehlo.dot_general %11, %arg4, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<32x8xf32>) -> tensor<8x8xf32>
    %15 = stablehlo.broadcast_in_dim %arg5, dims = [1] : (tensor<8xf32>) -> tensor<1x8xf32>
    %16 = stablehlo.broadcast_in_dim %15, dims = [0, 1] : (tensor<1x8xf32>) -> tensor<8x8xf32>
    %17 = stablehlo.add %14, %16 : tensor<8x8xf32>
    %18 = stablehlo.multiply %17, %17 : tensor<8x8xf32>
    %cst_1 = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %19 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %20 = stablehlo.multiply %19, %17 : tensor<8x8xf32>
    %cst_2 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %21 = stablehlo.reduce(%18 init: %cst_2) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>
    %cst_3 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %22 = stablehlo.divide %21, %cst_3 : tensor<f32>
    %cst_4 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %cst_5 = stablehlo.constant dense<6.400000e+01> : tensor<f32>
    %23 = stablehlo.divide %cst_4, %cst_5 : tensor<f32>
    %24 = stablehlo.broadcast_in_dim %23, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %25 = stablehlo.multiply %24, %20 : tensor<8x8xf32>
    %cst_6 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %26 = stablehlo.reduce(%25 init: %cst_6) applies stablehlo.add across dimensions = [0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
    %27 = stablehlo.reshape %26 : (tensor<8xf32>) -> tensor<1x8xf32>
    %cst_7 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %28 = stablehlo.reduce(%27 init: %cst_7) applies stablehlo.add across dimensions = [0] : (tensor<1x8xf32>, tensor<f32>) -> tensor<8xf32>
    %29 = stablehlo.dot_general %25, %11, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<8x32xf32>) -> tensor<8x32xf32>
    %30 = stablehlo.transpose %29, dims = [1, 0] : (tensor<8x32xf32>) -> tensor<32x8xf32>
    %31 = stablehlo.dot_general %25, %arg4, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x8xf32>, tensor<32x8xf32>) -> tensor<8x32xf32>
    %cst_8 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %32 = stablehlo.broadcast_in_dim %cst_8, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %33 = stablehlo.select %13, %31, %32 : tensor<8x32xi1>, tensor<8x32xf32>
    %cst_9 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %34 = stablehlo.reduce(%33 init: %cst_9) applies stablehlo.add across dimensions = [0] : (tensor<8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %35 = stablehlo.reshape %34 : (tensor<32xf32>) -> tensor<1x32xf32>
    %cst_10 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %36 = stablehlo.reduce(%35 init: %cst_10) applies stablehlo.add across dimensions = [0] : (tensor<1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %37 = stablehlo.dot_general %33, %4, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<8x32xf32>) -> tensor<32x32xf32>
    %38 = stablehlo.transpose %37, dims = [1, 0] : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %39 = stablehlo.dot_general %33, %arg2, contracting_dims = [1] x [1], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<32x32xf32>) -> tensor<8x32xf32>
    %cst_11 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %40 = stablehlo.broadcast_in_dim %cst_11, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %41 = stablehlo.select %6, %39, %40 : tensor<8x32xi1>, tensor<8x32xf32>
    %cst_12 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %42 = stablehlo.reduce(%41 init: %cst_12) applies stablehlo.add across dimensions = [0] : (tensor<8x32xf32>, tensor<f32>) -> tensor<32xf32>
    %43 = stablehlo.reshape %42 : (tensor<32xf32>) -> tensor<1x32xf32>
    %cst_13 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %44 = stablehlo.reduce(%43 init: %cst_13) applies stablehlo.add across dimensions = [0] : (tensor<1x32xf32>, tensor<f32>) -> tensor<32xf32>
    %45 = stablehlo.dot_general %41, %arg19, contracting_dims = [0] x [0], precision = [DEFAULT, DEFAULT] : (tensor<8x32xf32>, tensor<8x16xf32>) -> tensor<32x16xf32>
    %46 = stablehlo.transpose %45, dims = [1, 0] : (tensor<32x16xf32>) -> tensor<16x32xf32>
    %cst_14 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %47 = stablehlo.add %arg18, %cst_14 : tensor<f32>
    %cst_15 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %48 = stablehlo.broadcast_in_dim %cst_15, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %49 = stablehlo.multiply %48, %arg6 : tensor<16x32xf32>
    %cst_16 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %50 = stablehlo.broadcast_in_dim %cst_16, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %51 = stablehlo.multiply %50, %46 : tensor<16x32xf32>
    %52 = stablehlo.add %49, %51 : tensor<16x32xf32>
    %cst_17 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %53 = stablehlo.broadcast_in_dim %cst_17, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %54 = stablehlo.multiply %53, %arg7 : tensor<32xf32>
    %cst_18 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %55 = stablehlo.broadcast_in_dim %cst_18, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %56 = stablehlo.multiply %55, %44 : tensor<32xf32>
    %57 = stablehlo.add %54, %56 : tensor<32xf32>
    %cst_19 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %58 = stablehlo.broadcast_in_dim %cst_19, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %59 = stablehlo.multiply %58, %arg8 : tensor<32x32xf32>
    %cst_20 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %60 = stablehlo.broadcast_in_dim %cst_20, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %61 = stablehlo.multiply %60, %38 : tensor<32x32xf32>
    %62 = stablehlo.add %59, %61 : tensor<32x32xf32>
    %cst_21 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %63 = stablehlo.broadcast_in_dim %cst_21, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %64 = stablehlo.multiply %63, %arg9 : tensor<32xf32>
    %cst_22 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %65 = stablehlo.broadcast_in_dim %cst_22, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %66 = stablehlo.multiply %65, %36 : tensor<32xf32>
    %67 = stablehlo.add %64, %66 : tensor<32xf32>
    %cst_23 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %68 = stablehlo.broadcast_in_dim %cst_23, dims = [] : (tensor<f32>) -> tensor<32x8xf32>
    %69 = stablehlo.multiply %68, %arg10 : tensor<32x8xf32>
    %cst_24 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %70 = stablehlo.broadcast_in_dim %cst_24, dims = [] : (tensor<f32>) -> tensor<32x8xf32>
    %71 = stablehlo.multiply %70, %30 : tensor<32x8xf32>
    %72 = stablehlo.add %69, %71 : tensor<32x8xf32>
    %cst_25 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %73 = stablehlo.broadcast_in_dim %cst_25, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %74 = stablehlo.multiply %73, %arg11 : tensor<8xf32>
    %cst_26 = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %75 = stablehlo.broadcast_in_dim %cst_26, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %76 = stablehlo.multiply %75, %28 : tensor<8xf32>
    %77 = stablehlo.add %74, %76 : tensor<8xf32>
    %cst_27 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %78 = stablehlo.broadcast_in_dim %cst_27, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %79 = stablehlo.multiply %78, %arg12 : tensor<16x32xf32>
    %cst_28 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %80 = stablehlo.broadcast_in_dim %cst_28, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %81 = stablehlo.multiply %80, %46 : tensor<16x32xf32>
    %82 = stablehlo.multiply %81, %46 : tensor<16x32xf32>
    %83 = stablehlo.add %79, %82 : tensor<16x32xf32>
    %cst_29 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %84 = stablehlo.broadcast_in_dim %cst_29, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %85 = stablehlo.multiply %84, %arg13 : tensor<32xf32>
    %cst_30 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %86 = stablehlo.broadcast_in_dim %cst_30, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %87 = stablehlo.multiply %86, %44 : tensor<32xf32>
    %88 = stablehlo.multiply %87, %44 : tensor<32xf32>
    %89 = stablehlo.add %85, %88 : tensor<32xf32>
    %cst_31 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %90 = stablehlo.broadcast_in_dim %cst_31, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %91 = stablehlo.multiply %90, %arg14 : tensor<32x32xf32>
    %cst_32 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %92 = stablehlo.broadcast_in_dim %cst_32, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %93 = stablehlo.multiply %92, %38 : tensor<32x32xf32>
    %94 = stablehlo.multiply %93, %38 : tensor<32x32xf32>
    %95 = stablehlo.add %91, %94 : tensor<32x32xf32>
    %cst_33 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %96 = stablehlo.broadcast_in_dim %cst_33, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %97 = stablehlo.multiply %96, %arg15 : tensor<32xf32>
    %cst_34 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %98 = stablehlo.broadcast_in_dim %cst_34, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %99 = stablehlo.multiply %98, %36 : tensor<32xf32>
    %100 = stablehlo.multiply %99, %36 : tensor<32xf32>
    %101 = stablehlo.add %97, %100 : tensor<32xf32>
    %cst_35 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %102 = stablehlo.broadcast_in_dim %cst_35, dims = [] : (tensor<f32>) -> tensor<32x8xf32>
    %103 = stablehlo.multiply %102, %arg16 : tensor<32x8xf32>
    %cst_36 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %104 = stablehlo.broadcast_in_dim %cst_36, dims = [] : (tensor<f32>) -> tensor<32x8xf32>
    %105 = stablehlo.multiply %104, %30 : tensor<32x8xf32>
    %106 = stablehlo.multiply %105, %30 : tensor<32x8xf32>
    %107 = stablehlo.add %103, %106 : tensor<32x8xf32>
    %cst_37 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %108 = stablehlo.broadcast_in_dim %cst_37, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %109 = stablehlo.multiply %108, %arg17 : tensor<8xf32>
    %cst_38 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %110 = stablehlo.broadcast_in_dim %cst_38, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %111 = stablehlo.multiply %110, %28 : tensor<8xf32>
    %112 = stablehlo.multiply %111, %28 : tensor<8xf32>
    %113 = stablehlo.add %109, %112 : tensor<8xf32>
    %cst_39 = stablehlo.constant dense<9.990000e-01> : tensor<f32>
    %114 = stablehlo.power %cst_39, %47 : tensor<f32>
    %cst_40 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %115 = stablehlo.subtract %cst_40, %114 : tensor<f32>
    %116 = stablehlo.sqrt %115 : tensor<f32>
    %cst_41 = stablehlo.constant dense<1.000000e-03> : tensor<f32>
    %117 = stablehlo.multiply %cst_41, %116 : tensor<f32>
    %cst_42 = stablehlo.constant dense<0.899999976> : tensor<f32>
    %118 = stablehlo.power %cst_42, %47 : tensor<f32>
    %cst_43 = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %119 = stablehlo.subtract %cst_43, %118 : tensor<f32>
    %120 = stablehlo.divide %117, %119 : tensor<f32>
    %121 = stablehlo.broadcast_in_dim %120, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %122 = stablehlo.multiply %121, %52 : tensor<16x32xf32>
    %123 = stablehlo.sqrt %83 : tensor<16x32xf32>
    %cst_44 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %124 = stablehlo.broadcast_in_dim %cst_44, dims = [] : (tensor<f32>) -> tensor<16x32xf32>
    %125 = stablehlo.add %123, %124 : tensor<16x32xf32>
    %126 = stablehlo.divide %122, %125 : tensor<16x32xf32>
    %127 = stablehlo.subtract %arg0, %126 : tensor<16x32xf32>
    %128 = stablehlo.broadcast_in_dim %120, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %129 = stablehlo.multiply %128, %57 : tensor<32xf32>
    %130 = stablehlo.sqrt %89 : tensor<32xf32>
    %cst_45 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %131 = stablehlo.broadcast_in_dim %cst_45, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %132 = stablehlo.add %130, %131 : tensor<32xf32>
    %133 = stablehlo.divide %129, %132 : tensor<32xf32>
    %134 = stablehlo.subtract %arg1, %133 : tensor<32xf32>
    %135 = stablehlo.broadcast_in_dim %120, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %136 = stablehlo.multiply %135, %62 : tensor<32x32xf32>
    %137 = stablehlo.sqrt %95 : tensor<32x32xf32>
    %cst_46 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %138 = stablehlo.broadcast_in_dim %cst_46, dims = [] : (tensor<f32>) -> tensor<32x32xf32>
    %139 = stablehlo.add %137, %138 : tensor<32x32xf32>
    %140 = stablehlo.divide %136, %139 : tensor<32x32xf32>
    %141 = stablehlo.subtract %arg2, %140 : tensor<32x32xf32>
    %142 = stablehlo.broadcast_in_dim %120, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %143 = stablehlo.multiply %142, %67 : tensor<32xf32>
    %144 = stablehlo.sqrt %101 : tensor<32xf32>
    %cst_47 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %145 = stablehlo.broadcast_in_dim %cst_47, dims = [] : (tensor<f32>) -> tensor<32xf32>
    %146 = stablehlo.add %144, %145 : tensor<32xf32>
    %147 = stablehlo.divide %143, %146 : tensor<32xf32>
    %148 = stablehlo.subtract %arg3, %147 : tensor<32xf32>
    %149 = stablehlo.broadcast_in_dim %120, dims = [] : (tensor<f32>) -> tensor<32x8xf32>
    %150 = stablehlo.multiply %149, %72 : tensor<32x8xf32>
    %151 = stablehlo.sqrt %107 : tensor<32x8xf32>
    %cst_48 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %152 = stablehlo.broadcast_in_dim %cst_48, dims = [] : (tensor<f32>) -> tensor<32x8xf32>
    %153 = stablehlo.add %151, %152 : tensor<32x8xf32>
    %154 = stablehlo.divide %150, %153 : tensor<32x8xf32>
    %155 = stablehlo.subtract %arg4, %154 : tensor<32x8xf32>
    %156 = stablehlo.broadcast_in_dim %120, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %157 = stablehlo.multiply %156, %77 : tensor<8xf32>
    %158 = stablehlo.sqrt %113 : tensor<8xf32>
    %cst_49 = stablehlo.constant dense<9.99999974E-5> : tensor<f32>
    %159 = stablehlo.broadcast_in_dim %cst_49, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %160 = stablehlo.add %158, %159 : tensor<8xf32>
    %161 = stablehlo.divide %157, %160 : tensor<8xf32>
    %162 = stablehlo.subtract %arg5, %161 : tensor<8xf32>
    return %22, %127, %134, %141, %148, %155, %162, %52, %57, %62, %67, %72, %77, %83, %89, %95, %101, %107, %113, %47 : tensor<f32>, tensor<16x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x8xf32>, tensor<8xf32>, tensor<16x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x8xf32>, tensor<8xf32>, tensor<16x32xf32>, tensor<32xf32>, tensor<32x32xf32>, tensor<32xf32>, tensor<32x8xf32>, tensor<8xf32>, tensor<f32>
  }
  func.func private @relu(%arg0: tensor<8x32xf32>) -> tensor<8x32xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x32xf32>
    %1 = stablehlo.maximum %arg0, %0 : tensor<8x32xf32>
    return %1 : tensor<8x32xf32>
  }
}
