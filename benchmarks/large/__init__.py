"""Large problems with data: AdaptiveGDPA beside the solvers people would pick and the methods of the paper."""
