"""The laboratory: what measures the product. The product does not import it; the command line and benchmarks do.

workloads/    relations and streams as a function of a seed
sources.py    R and S of an experiment; laboratory.py: scale, data, unit costs, and runs that are remembered
measure/      steady state, timed turns, delays, resident memory, finished runs
contest/      ours and today's tools on the same join, each in a process of its own
calibrate/    unit costs of this machine, and sizes found by real runs
figures/      the papers' figures and ours: how each is measured, and what its paper says
verdicts.py   how a claim is judged; reproduce.py: figures into an out folder; report/: the page that shows them
demo/         a warehouse loaded by Spark, for everybody to see
"""
