/*
What both trainers' Muon (Jordan et al. 2024) have in common. It keeps one moment, the momentum, of each matrix of a layer, and
moves the matrix by the nearest orthogonal one, as five Newton-Schulz steps approximate it:

    m = μ m + (1-μ) g;   u = μ m + (1-μ) g (Nesterov);   X = u / ‖u‖, transposed if it has more rows than columns
    five times: A = X Xᵀ;  X = a X + (b A + c A²) X
    w -= lr (scale X + decay w)

Queries, keys and values are three matrices. The coefficients are Jordan's: singular values above .002 of the norm come to
between .68 and 1.2, smaller ones stay smaller. The scale gives updates the root mean square of AdamW's, about .2 (Liu et al.
2025), so that one learning rate and one weight decay serve both.
*/
#ifndef LLMC_MODEL_MUON_H
#define LLMC_MODEL_MUON_H

#include <math.h>
#include <stddef.h>

enum { MUON_STEPS = 5 };
static const float MUON_A = 3.4445f, MUON_B = -4.7750f, MUON_C = 2.0315f;
static const float MUON_EPSILON = 1e-7f; // added to the norm, which is 0 without gradients

// The scale of a matrix (rows, cols)
static inline float muon_scale(size_t rows, size_t cols) { return 0.2f * sqrtf((float)(rows > cols ? rows : cols)); }

#endif
