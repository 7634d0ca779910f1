"""Task files: a PyTorch module and its inputs in one Python file, loaded into a `Task` with everything a launch plan can name.

    loaded = load_task("softmax.py")
    draw = loaded.draw(variant=0, seed=7)          # inputs by plan name
    outputs = loaded.run(draw)                     # the reference's outputs by plan name

source.py finds and imports the file, sizes.py refuses what would not fit, load.py takes down the signature, module.py holds the
module's own tensors, loaded.py is what the judge works with, tree.py walks nested values. See docs/tasks.md.
"""

from .load import load_task
from .loaded import Draw, LoadedTask
from .sizes import available_bytes

__all__ = ["Draw", "LoadedTask", "available_bytes", "load_task"]
