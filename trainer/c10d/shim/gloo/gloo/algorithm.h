// c10d's headers include gloo's, which libtorch does not ship. c10d only passes pointers to these types, so
// declarations suffice. Update them together with libtorch.
#pragma once
#include <memory>
