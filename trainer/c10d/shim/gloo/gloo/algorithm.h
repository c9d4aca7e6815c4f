// c10d's headers name gloo's, which libtorch does not ship. c10d only passes these types along by pointer, so
// declarations of our own are enough; they move together with libtorch's version.
#pragma once
#include <memory>
