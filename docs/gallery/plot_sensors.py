"""
Sensor windows
==============

Which of three machines is running, from two seconds of a vibration sensor: windows of numbers through random kernels and
the first two layers of a frozen GPT-2, read out by a ridge.
"""

import matplotlib.pyplot as plt
import numpy as np

plt.plot(np.arange(3))
