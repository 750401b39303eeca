"""Stays small while its child grows by 1 MiB a step."""
import pathlib
import subprocess
import sys

subprocess.run([sys.executable, str(pathlib.Path(__file__).with_name("leak.py"))], check=True)
