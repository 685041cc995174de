"""``interlock fork``, as a person and a script see it."""

from __future__ import annotations

import json

from commands import Commands
from interlock.testing import call, calls, text


def test_fork_prints_the_new_id_and_says_that_nothing_is_undone(commands: Commands) -> None:
    with commands.model([calls(call("a", "list_files")), text("Nothing."), text("Still nothing.")]) as server:
        commands("run", "--session", "chat-42", "What is here?")
        listed = commands("fork", "chat-42", "--list").stdout
        places = [line.split(maxsplit=1) for line in listed.splitlines()]
        assert [said for _, said in places] == [
            "the prompt, before any request: What is here?",
            "the results of: list_files",
            "the run ended: completed (answer)",
        ]

        done = commands("fork", "chat-42", "--at", places[1][0], "--as", "other")
        assert done.stdout == "other\n"
        said = " ".join(done.stderr.split())
        assert "is not undone" in said
        assert 'interlock run --session other "..."' in said
        assert "the next prompt ends it" in said

        assert commands("run", "--session", "other", "And now?").stdout == "Still nothing.\n"
        assert len(server.requests) == 3
    ids = {json.loads(line)["session_id"] for line in commands("sessions", "--json").stdout.splitlines()}
    assert ids == {"chat-42", "other"}
    made = commands("fork", "chat-42").stdout.strip()
    assert made.startswith("fork-")
    assert "forked" not in made


def test_fork_refuses_what_cannot_be(commands: Commands) -> None:
    assert "no sessions yet" in commands("fork", code=2).stderr
    with commands.model([text("Hi.")]):
        commands("run", "--session", "chat-42", "hello")
    assert "already" in commands("fork", "chat-42", "--as", "chat-42", code=3).stderr
    assert "there is no row 99" in " ".join(commands("fork", "chat-42", "--at", "99", code=2).stderr.split())
    assert "no session 'nobody'" in commands("fork", "nobody", code=2).stderr
    assert "--as" in commands("fork", "chat-42", "--as", "", code=2).stderr
