"""Integer programs in stages: the formulations of HiRemate, Rockmate and Checkmate, and their bounds."""
