"""An MCP server over stdin and stdout: stocks and prices of shops."""

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


server.run("stdio")
