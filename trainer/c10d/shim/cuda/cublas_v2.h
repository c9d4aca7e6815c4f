// c10d's headers for NCCL name types of CUDA's mathematics libraries, whose packages are over 1 GB. The shim only
// passes pointers to these types, so declarations suffice. Update them together with libtorch.
#pragma once
typedef struct cublasContext* cublasHandle_t;
enum cublasStatus_t : int;
