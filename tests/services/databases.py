"""What tests ask of a database server: its version, a database to create, to empty and to drop."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit


class Databases(Protocol):
    def version(self, url: str) -> str:
        """Product and version, as the server tells them."""
        ...

    def create(self, url: str, name: str) -> None: ...

    def drop(self, url: str, name: str) -> None:
        """Drop it, whoever is still connected."""
        ...

    def disconnect(self, url: str) -> None:
        """Disconnect whoever is connected to it."""
        ...

    def empty(self, url: str) -> None:
        """Disconnect whoever is connected to it, and drop all schemas and tables in it."""
        ...


class PostgreSQLDatabases:
    # Sessions are gone when it returns: a pooler must not hand out one that is about to die.
    DISCONNECT = """
        DO $$
        DECLARE
            sessions CONSTANT int[] := ARRAY(
                SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                AND backend_type = 'client backend');
        BEGIN
            PERFORM pg_terminate_backend(pid) FROM unnest(sessions) AS pid;
            WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY (sessions)) LOOP
                PERFORM pg_sleep(0.002), pg_stat_clear_snapshot();
            END LOOP;
        END $$"""
    DROP_ALL = """
        DO $$
        DECLARE
            name text;
        BEGIN
            FOR name IN
                SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
            LOOP
                EXECUTE format('DROP SCHEMA %I CASCADE', name);
            END LOOP;
            CREATE SCHEMA public;
        END $$"""

    def version(self, url: str) -> str:
        return f"PostgreSQL {self.ask(url, 'SHOW server_version').split()[0]}"

    def create(self, url: str, name: str) -> None:
        self.ask(url, f'CREATE DATABASE "{name}"')

    def drop(self, url: str, name: str) -> None:
        self.ask(url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def disconnect(self, url: str) -> None:
        self.ask(url, self.DISCONNECT)

    def empty(self, url: str) -> None:
        self.disconnect(url)
        self.ask(url, self.DROP_ALL)

    def ask(self, url: str, statement: str) -> Any:
        """Run one statement in no transaction, and return the first value if there are rows."""
        import psycopg  # only once it is needed: most tests need no driver

        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement.encode())
            row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None


class MySQLDatabases:
    def version(self, url: str) -> str:
        with closing(self._connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT VERSION()")
            version = cursor.fetchone()[0]
        return f"{'MariaDB' if 'MariaDB' in version else 'MySQL'} {version.split('-')[0]}"

    def create(self, url: str, name: str) -> None:
        with closing(self._connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")

    def drop(self, url: str, name: str) -> None:
        with closing(self._connect(url)) as connection, connection.cursor() as cursor:
            self._disconnect(cursor, name)
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def disconnect(self, url: str) -> None:
        with closing(self._connect(url)) as connection, connection.cursor() as cursor:
            self._disconnect(cursor, urlsplit(url).path.lstrip("/"))

    def empty(self, url: str) -> None:
        name = urlsplit(url).path.lstrip("/")
        self.drop(url, name)
        self.create(url, name)

    def _disconnect(self, cursor: Any, name: str) -> None:
        sessions = "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()"
        cursor.execute(sessions, [name])
        for (session,) in cursor.fetchall():
            with suppress(Exception):  # it has gone by itself; of anything else we hear when the database is dropped
                cursor.execute(f"KILL {session}")

    def _connect(self, url: str) -> Any:
        """To the server, not to the database, which may not exist."""
        import pymysql

        parts = urlsplit(url)
        return pymysql.connect(
            host=parts.hostname,
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            ssl_disabled=not parts.password,  # no secret to protect, and reading all certificates takes 20 ms
            connect_timeout=5,
            autocommit=True,
        )


def at_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()
