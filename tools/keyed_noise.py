"""The noise of sampled tokens (docs/ops.md, choose_token), written from its definition."""
import math

import numpy as np


def philox(key, counter_hi, counter_lo):
    """Philox 4x32-10."""
    m = 0xFFFFFFFF
    k0, k1 = key & m, key >> 32
    c = [counter_lo & m, counter_lo >> 32, counter_hi & m, counter_hi >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & m, (p0 >> 32) ^ c[3] ^ k1, p0 & m]
        k0, k1 = (k0 + 0x9E3779B9) & m, (k1 + 0xBB67AE85) & m
    return c


def gumbel(seed, choice, position, token):
    words = philox(seed, choice << 32 | position, token // 2)[2 * (token % 2):][:2]
    u = (((words[0] << 32 | words[1]) >> 12) + 0.5) * 2.0 ** -52
    return float(np.float32(-math.log(-math.log(u))))
