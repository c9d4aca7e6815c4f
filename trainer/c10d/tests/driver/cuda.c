// A driver with two devices, for the test of UUIDs.
#include <string.h>

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

int cuDeviceGet(int* device, int number) {
  *device = 0xa0 + number;
  return number < 2 ? 0 : 101;
}

int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  memset(uuid, device, 16);
  return 0;
}
