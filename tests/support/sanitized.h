#pragma once

namespace megalith {

// Whether the build is one of the sanitizers', where a step takes ten times as long. Tests of bits then take fewer of the
// shapes that the release build takes: what the sanitizers look for does not depend on all of their combinations.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace megalith
