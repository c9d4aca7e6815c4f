// Conversion of exceptions into return codes.
#pragma once
#include <c10/util/Exception.h>

#include <string>

extern thread_local std::string last_error;

template <class F>
static int guard(F body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& e) {
    last_error = e.what_without_backtrace();
  } catch (const std::exception& e) {
    last_error = e.what();
  } catch (...) {
    last_error = "an exception of unknown type";
  }
  return 1;
}
