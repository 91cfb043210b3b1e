"""A site on 127.0.0.1 for tests: the server of `data/servers/pages` in a thread, whose requests are counted."""

import importlib.util
import threading
from contextlib import contextmanager
from pathlib import Path

SERVER = Path(__file__).parents[1] / "data" / "servers" / "pages" / "server.py"


@contextmanager
def serve_pages(fails=0.0, pages=None):
    """Provide the address of a site and its counts of requests, by path; `pages` replaces those of the server."""
    spec = importlib.util.spec_from_file_location("pages_server", SERVER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if pages is not None:
        module.PAGES = pages
    server = module.make_server(0, fails)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.counts
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
