# The text of the container's `python3 -c`: takes a bundle of modules from standard input and starts process 1.
# A bundle is twelve decimal digits (the length) and a marshalled dict {name: (is_package, form, data)}.
# The data are source ("source"), marshalled code ("code"), or that compressed by zlib ("compressed").
import gc
import marshal
import os
import sys

# Nothing that is loaded is garbage. The collector is enabled again in `init.main`, when all is there.
gc.disable()

OURS = ("PYTHONHASHSEED", "PYTHONSAFEPATH")

if sys.version_info < (3, 11):
    os._exit(78)


# Ours, for this interpreter alone (`host/sandboxes.INTERPRETER`).
for name in [name for name in os.environ if name.startswith("PYTHON") and (not os.environ[name] or name in OURS)]:
    del os.environ[name]


def read_exactly(count):
    data = bytearray(count)
    left = memoryview(data)
    while left:
        read = os.readv(0, [left])
        if not read:
            os._exit(70)
        left = left[read:]
    return data


modules = marshal.loads(read_exactly(int(read_exactly(12))))
# A script may take them out of `sys.modules`: they are imported again as they are.
loaded = {}


class Bundle:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in modules or name in loaded:
            is_package = modules[name][0] if name in modules else hasattr(loaded[name], "__path__")
            spec = type(sys.__spec__)(name, Bundle, origin="<bridge>", is_package=is_package)
            spec.cached = None
            return spec
        return None

    @staticmethod
    def create_module(spec):
        return loaded.get(spec.name)

    @staticmethod
    def exec_module(module):
        if module.__name__ in loaded:
            return
        _, form, data = modules.pop(module.__name__)
        if form == "compressed":
            import zlib

            data = zlib.decompress(data)
        if form == "source":
            code = compile(data, "<bridge>/" + module.__name__, "exec", dont_inherit=True)
        else:
            code = marshal.loads(data)
        exec(code, module.__dict__)
        loaded[module.__name__] = module


sys.meta_path.insert(0, Bundle)

import mcp_bridge.guest.init

mcp_bridge.guest.init.main(sys.argv[1:])
