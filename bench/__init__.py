"""Speed, as ratios taken in one run: ours against the raw driver, interleaved, medians reported."""
