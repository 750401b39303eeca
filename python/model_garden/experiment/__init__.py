"""The experiment behind `model_garden.bisect`: the stages of a pipeline, each over the same examples several times, in processes of their own.

`pieces.py` is what a user gives, `stages.py` runs it over examples, `measured.py` is one measured process from its start to its end,
`children.py` starts and ends such processes, `conduct.py` decides which ones are needed. `counters.py` reads memory, `holders.py` finds out what
holds it. Nothing here judges: what was measured is written down, and the binary judges it, now or later.
"""
