"""Messages as signed web hooks, and a server that checks the signatures: python http_webhook.py"""

import asyncio
import sqlite3
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from standardwebhooks import Webhook

from postroom import Outbox, Relay

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # both sides know it


class Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        order = Webhook(SECRET).verify(body, dict(self.headers))  # who else could have sent it?
        print(self.headers["postroom-key"], self.headers["postroom-type"], order, flush=True)
        self.send_response(204)  # anything else, and it comes again
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


outbox = Outbox()
connection = sqlite3.connect("shop.db")
with connection:  # the order and its message, or neither
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER)")
    connection.execute("INSERT INTO orders (total) VALUES (42)")
    outbox.add(connection, "orders", {"id": 1, "total": 42}, key="order-1", type="OrderPlaced")
connection.close()

with HTTPServer(("127.0.0.1", 0), Hook) as server:
    Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/hooks/{{topic}}#secret={SECRET}&allow_private=true"
    relay = Relay("sqlite:///shop.db", url, outbox=outbox)
    print("delivered", asyncio.run(relay.drain()).delivered)
    server.shutdown()
