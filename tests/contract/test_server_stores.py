"""The stores on real servers, through the suite that ships with the package."""

from __future__ import annotations

from postroom.testing.store_contract import StoreContract
from tests.contract.on_servers import (
    OnMariadb,
    OnMariadbThroughAiomysql,
    OnPostgresql15,
    OnPostgresql18,
    OnPostgresqlThroughPgbouncer,
    OnPostgresqlThroughPsycopg,
)


class TestPostgresql15(OnPostgresql15, StoreContract):
    pass


class TestPostgresql18(OnPostgresql18, StoreContract):
    pass


class TestPostgresqlThroughPsycopg(OnPostgresqlThroughPsycopg, StoreContract):
    pass


class TestPostgresqlThroughPgbouncer(OnPostgresqlThroughPgbouncer, StoreContract):
    pass


class TestMariadb(OnMariadb, StoreContract):
    pass


class TestMariadbThroughAiomysql(OnMariadbThroughAiomysql, StoreContract):
    pass
