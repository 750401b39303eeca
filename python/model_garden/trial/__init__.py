"""The experiment behind `model_garden.audit`: the same loop with and without workarounds, in processes of their own that take turns.

`workarounds.py` is what a user may ask for, `loops.py` how a loop gets into another process, `run.py` is one measured process from its start to its end,
`children.py` starts and ends such processes, `conduct.py` decides which ones are needed and asks the binary to judge. Nothing here judges.
"""
