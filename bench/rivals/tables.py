"""The two tables of the rivals suite: names and types of the columns, in the file's order."""

TABLES = {
    "votes": [("username", "text"), ("link", "text"), ("score", "integer")],
    "events": [
        ("event_id", "text"),
        ("event_type", "text"),
        ("actor_id", "bigint"),
        ("repo_id", "bigint"),
        ("created_at", "timestamptz"),
        ("is_public", "boolean"),
        ("payload", "jsonb"),
    ],
}


def names(table):
    """The columns' names."""
    return [name for name, _ in TABLES[table]]
