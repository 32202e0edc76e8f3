// Included once for each instruction set (Highway's foreach_target), so there is no #pragma once.
#if defined(MEGALITH_MATH_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef MEGALITH_MATH_INL_H
#undef MEGALITH_MATH_INL_H
#else
#define MEGALITH_MATH_INL_H
#endif

#include "machines/cpu/kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace megalith::HWY_NAMESPACE {

// Polynomials over fused multiply-add, the same bits on every instruction set. The platform's libm is not: it differs
// between vendors and versions. Errors are given against the exact function, in units of the last place (ulp).

// e^x within 2 ulp; 0 below -87.3 (where the result would be subnormal), +inf above 88.7, NaN for NaN.
// x = n ln 2 + r with |r| ≤ ln 2 / 2; e^r by its Taylor polynomial of degree 7; times 2^n.
HWY_INLINE V Exp(V x) {
  const D d;
  const V n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504f)));
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693145752f), x);  // ln 2 in two parts
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860677e-6f), r);
  V p = hn::Set(d, 1.0f / 5040);
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 720));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 120));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 24));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f / 6));
  p = hn::MulAdd(p, r, hn::Set(d, 0.5f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  // 2^n in two factors, so that n = 128 does not overflow before the product does.
  const auto whole = hn::ConvertTo(DI(), hn::Min(hn::Max(n, hn::Set(d, -126.0f)), hn::Set(d, 128.0f)));
  const auto half = hn::ShiftRight<1>(whole);
  const auto bias = hn::Set(DI(), 127);
  const V scale_a = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(half, bias)));
  const V scale_b = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(whole, half), bias)));
  V y = hn::Mul(hn::Mul(p, scale_a), scale_b);
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d, -87.3f)), hn::Zero(d), y);
  y = hn::IfThenElse(hn::Gt(x, hn::Set(d, 88.7228f)), hn::Set(d, HUGE_VALF), y);
  return hn::IfThenElse(hn::Eq(x, x), y, x);
}

// 1 / (1 + e^-x).
HWY_INLINE V Sigmoid(V x) {
  const V one = hn::Set(D(), 1.0f);
  return hn::Div(one, hn::Add(one, Exp(hn::Neg(x))));
}

HWY_INLINE V Silu(V x) { return hn::Mul(x, Sigmoid(x)); }

// tanh x within 3 ulp. Small x by the odd Taylor polynomial of degree 13, where 1 - 2 / (e^2x + 1) would lose its digits.
HWY_INLINE V Tanh(V x) {
  const D d;
  const V one = hn::Set(d, 1.0f);
  const V size = hn::Abs(x);
  const V large = hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(Exp(hn::Add(size, size)), one)));
  const V z = hn::Mul(x, x);
  V p = hn::Set(d, 21844.0f / 6081075);
  p = hn::MulAdd(p, z, hn::Set(d, -1382.0f / 155925));
  p = hn::MulAdd(p, z, hn::Set(d, 62.0f / 2835));
  p = hn::MulAdd(p, z, hn::Set(d, -17.0f / 315));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0f / 15));
  p = hn::MulAdd(p, z, hn::Set(d, -1.0f / 3));
  const V small = hn::MulAdd(hn::Mul(x, z), p, x);
  // Not greater, so that a NaN takes the branch that keeps it.
  return hn::IfThenElse(hn::Gt(size, hn::Set(d, 0.45f)), hn::CopySign(large, x), small);
}

// β tanh(gate / β) sigmoid(gate) · λ tanh(up / λ).
HWY_INLINE V SituOf(V gate, V up, float beta, float linear_beta) {
  const D d;
  const V bounded = hn::Mul(hn::Set(d, beta), Tanh(hn::Div(gate, hn::Set(d, beta))));
  const V linear = hn::Mul(hn::Set(d, linear_beta), Tanh(hn::Div(up, hn::Set(d, linear_beta))));
  return hn::Mul(hn::Mul(bounded, Sigmoid(gate)), linear);
}

// ln x within 2 ulp for normal x > 0; -inf at 0. Subnormal x counts as 0; x < 0 and NaN give NaN.
// x = 2^n m with m in [√½, √2); ln m = 2 atanh(s), s = (m - 1) / (m + 1), by its odd series up to s^11.
HWY_INLINE V Log(V x) {
  const D d;
  const auto bits = hn::BitCast(DI(), x);
  // Subtracting the bits of √½ puts the border between exponents there.
  const auto shifted = hn::Sub(bits, hn::Set(DI(), 0x3f3504f3));
  const V n = hn::ConvertTo(d, hn::ShiftRight<23>(shifted));
  const auto m_bits = hn::Add(hn::And(shifted, hn::Set(DI(), 0x7fffff)), hn::Set(DI(), 0x3f3504f3));
  const V m = hn::BitCast(d, m_bits);
  const V one = hn::Set(d, 1.0f);
  const V f = hn::Sub(m, one);
  const V s = hn::Div(f, hn::Add(m, one));
  const V z = hn::Mul(s, s);
  V p = hn::Set(d, 2.0f / 11);
  p = hn::MulAdd(p, z, hn::Set(d, 2.0f / 9));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0f / 7));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0f / 5));
  p = hn::MulAdd(p, z, hn::Set(d, 2.0f / 3));
  // 2s is f - s f exactly; taking it so keeps the digits of small f.
  const V tail = hn::Mul(hn::Mul(p, z), s);
  const V low = hn::MulAdd(n, hn::Set(d, 1.42860677e-6f), hn::NegMulAdd(s, f, tail));
  V y = hn::MulAdd(n, hn::Set(d, 0.693145752f), hn::Add(f, low));
  y = hn::IfThenElse(hn::Lt(x, hn::Set(d, 1.17549435e-38f)), hn::Set(d, -HUGE_VALF), y);
  y = hn::IfThenElse(hn::Eq(x, hn::Set(d, HUGE_VALF)), x, y);
  return hn::IfThenElse(hn::Ge(x, hn::Zero(d)), y, hn::Set(d, __builtin_nanf("")));
}

// ln(1 + e^x), or x above 20 as in torch.
HWY_INLINE V Softplus(V x) {
  const D d;
  const V e = Exp(hn::Min(x, hn::Set(d, 20.0f)));
  // ln(1 + e) = ln(u) · e / (u - 1) with u = 1 + e rounded keeps the digits of small e (Kahan).
  const V one = hn::Set(d, 1.0f);
  const V u = hn::Add(one, e);
  const V gap = hn::Sub(u, one);
  const V y = hn::IfThenElse(hn::Eq(gap, hn::Zero(d)), e, hn::Mul(Log(u), hn::Div(e, gap)));
  // Also x for a NaN, which Min may have replaced.
  return hn::IfThenElse(hn::Le(x, hn::Set(d, 20.0f)), y, x);
}

// The same functions of one number, for what is formed once a head or a row.
HWY_INLINE float Exp1(float x) { return hn::GetLane(Exp(hn::Set(D(), x))); }
HWY_INLINE float Log1(float x) { return hn::GetLane(Log(hn::Set(D(), x))); }
HWY_INLINE float Sigmoid1(float x) { return hn::GetLane(Sigmoid(hn::Set(D(), x))); }
HWY_INLINE float Softplus1(float x) { return hn::GetLane(Softplus(hn::Set(D(), x))); }

}  // namespace megalith::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
