"""Puts the module that Cargo has built where Python finds it: `python python/develop.py [TARGET_DIR]`."""

import shutil
import sys
from pathlib import Path

here = Path(__file__).parent
target = Path(sys.argv[1]) if len(sys.argv) > 1 else here.parent / "target" / "debug"
built = [target / name for name in ("lib_greenroom.so", "lib_greenroom.dylib", "_greenroom.dll")]
built += [target / "deps" / path.name for path in built]
found = [path for path in built if path.exists()]
if not found:
    sys.exit(f"there is no module in {target}: build it with `cargo build -p greenroom-python`")
newest = max(found, key=lambda path: path.stat().st_mtime)
module = here / "greenroom" / ("_greenroom.pyd" if newest.suffix == ".dll" else "_greenroom.abi3.so")
shutil.copyfile(newest, module)
print(module)
