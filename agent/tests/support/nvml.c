// A library with the name and a few functions of NVML, for one GPU. Reading the utilization opens the file named
// by FAKE_NVML_GATE, which hangs while that file is a FIFO without a writer. The GPUs cannot be counted while the
// file named by FAKE_NVML_LOST exists.

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct utilization {
    unsigned gpu;
    unsigned memory;
};

int nvmlInit_v2(void) { return 0; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 1;
    return access(getenv("FAKE_NVML_LOST"), F_OK) == 0 ? 15 : 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)1;
    return index == 0 ? 0 : 2;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *utilization) {
    (void)device;
    close(open(getenv("FAKE_NVML_GATE"), O_RDONLY));
    utilization->gpu = 50;
    utilization->memory = 25;
    return 0;
}
