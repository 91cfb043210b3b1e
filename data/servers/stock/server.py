"""An MCP server over stdin and stdout, or with `--port` over HTTP at 127.0.0.1: stocks and prices of shops."""

import argparse
import hashlib

from mcp.server import MCPServer

server = MCPServer("stock", log_level="WARNING")


def draw(text: str) -> str:
    return str(10 + int(hashlib.sha256(text.encode()).hexdigest(), 16) % 90)


@server.tool()
def stock(shop: int, item: str) -> str:
    """How many of an item a shop has."""
    return draw(f"stock {shop} {item}")


@server.tool()
def price(shop: int, item: str) -> str:
    """What an item costs in a shop."""
    return draw(f"price {shop} {item}")


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
if port := parser.parse_args().port:
    server.run("streamable-http", port=port)
else:
    server.run("stdio")
