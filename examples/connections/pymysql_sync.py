"""PyMySQL: python pymysql_sync.py mysql://root@localhost/shop"""

import asyncio
import sys

import pymysql
from sqlalchemy import make_url

from postroom import Outbox, Relay

url = make_url(sys.argv[1])
outbox = Outbox()

place = {"host": url.host, "port": url.port or 3306, "user": url.username, "password": url.password or ""}
with pymysql.connect(**place, database=url.database) as connection:
    outbox.create_tables(connection)  # MySQL: before any transaction, for this would commit it
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER AUTO_INCREMENT PRIMARY KEY, total INTEGER)")
        cursor.execute("INSERT INTO orders (total) VALUES (42)")
        order = cursor.lastrowid
    outbox.add(connection, "orders", {"id": order, "total": 42}, key=f"order-{order}", type="OrderPlaced")
    connection.commit()  # both, or neither

asyncio.run(Relay(sys.argv[1], "stdout:").drain())
