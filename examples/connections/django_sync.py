"""Django: python django_sync.py postgresql://localhost/shop"""

import asyncio
import sys

import django
from django.conf import settings
from django.db import connection, transaction
from sqlalchemy import make_url

from postroom import Outbox, Relay

url = make_url(sys.argv[1])
place = {"NAME": url.database, "HOST": url.host, "PORT": url.port, "USER": url.username, "PASSWORD": url.password}
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **place}})
django.setup()
outbox = Outbox()

# Both are committed, or neither.
with transaction.atomic():  # pyright: ignore[reportGeneralTypeIssues]
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS orders (id SERIAL PRIMARY KEY, total INTEGER)")
        cursor.execute("INSERT INTO orders (total) VALUES (42) RETURNING id")
        (order,) = cursor.fetchone()
    outbox.add(connection, "orders", {"id": order, "total": 42}, key=f"order-{order}", type="OrderPlaced")
connection.close()
asyncio.run(Relay(sys.argv[1], "stdout:").drain())
