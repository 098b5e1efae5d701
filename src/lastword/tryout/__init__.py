"""From a table of labelled examples to a verdict: does a correction help on this job?"""
