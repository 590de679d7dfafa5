/*
The largest of several errors: worst = worse(worst, error). fmax() would drop a NaN, and a comparison the one that is followed
by a number.
*/
#ifndef WORST_H
#define WORST_H

#include <math.h>

// The larger one; NaN, in either, stays.
static inline double worse(double worst, double error) { return isnan(worst) || error <= worst ? worst : error; }

#endif
