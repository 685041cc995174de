"""The file tools as a model uses them: what it is told, what it may overwrite, and what it has to read again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from helpers import agent_playing, looped, records_of
from interlock import Agent, AgentRunConfig, Allow, Tool, ToolFailure, extension
from interlock.extensions.approvals import Approvals
from interlock.extensions.files import REMEMBERED_MAX, Files
from interlock.extensions.permissions import Permissions
from interlock.extensions.secrets import RedactSecrets
from interlock.extensions.toolsets import TOOLSETS, toolset
from interlock.journal import MemoryJournal
from interlock.messages import ToolMessage, text_of
from interlock.records import ExtensionNoted
from interlock.testing import ScriptedModel, call, calls, check_extension, text
from interlock.toolbox import reading
from interlock.toolbox.files import Seen, file_tools
from interlock.toolbox.reading import digest_of
from interlock.toolbox.roots import Roots
from interlock.tools import did_not_happen, happened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("the secret")
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("one\ntwo\nthree\n")
    (root / "image.bin").write_bytes(b"\x89PNG\0\0")
    (root / "out").symlink_to("../secret.txt")
    return root


@pytest.fixture
def tools(root: Path) -> dict[str, Tool]:
    return {tool.name: tool for tool in file_tools(root)}


def refusal(tool: Tool, *args: Any, **named: Any) -> str:
    with pytest.raises(ToolFailure) as caught:
        tool(*args, context=None, **named)
    assert caught.value.effect == "none"
    return str(caught.value)


def unasked(steps: Any, **options: Any) -> Any:
    """An agent whose calls nobody is asked about."""
    return agent_playing(steps, without=[Approvals], **options)


async def told(root: Path, *asked: tuple[str, dict[str, Any]], between: Any = lambda _: None) -> list[ToolMessage]:
    """What a model is told that makes these calls in turn. between: is called with the index of each call before it."""
    steps = []
    for index, (name, arguments) in enumerate(asked):
        steps.append(calls(call(f"c{index}", name, arguments)))

    @extension
    async def before(context: Any, made: Any, call_next: Any) -> Any:
        between(int(made.id[1:]))
        return await call_next()

    async with unasked([*steps, text("Done.")], extensions=[Files(root), before]) as agent:
        result = await agent.run("Go.")
    return [message for message in result.require().messages if isinstance(message, ToolMessage)]


def test_a_new_file_and_its_directories_are_made(root: Path, tools: dict[str, Tool]) -> None:
    said = tools["write_file"]("new/deep/b.txt", "x\ny\n", context=None)
    assert said == "new/deep/b.txt is new: 2 lines, 4 bytes"
    assert (root / "new" / "deep" / "b.txt").read_text() == "x\ny\n"
    assert tools["write_file"]("c.txt", "x\n", context=None) == "c.txt is new: 1 line, 2 bytes"


def test_an_overwritten_file_says_what_became_of_it(root: Path, tools: dict[str, Tool]) -> None:
    said = tools["write_file"]("a.txt", "one\n2\nthree\n", context=None)
    assert said.splitlines()[0] == "a.txt was overwritten: 3 lines, 12 bytes"
    assert {"-two", "+2"} <= set(said.splitlines())
    assert "very text already" in tools["write_file"]("a.txt", "one\n2\nthree\n", context=None)


def test_an_edit_gives_the_difference(root: Path, tools: dict[str, Tool]) -> None:
    said = tools["edit_file"]("a.txt", "two", "2", context=None)
    assert said == "--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
    assert (root / "a.txt").read_text() == "one\n2\nthree\n"


def test_an_edit_that_fails_changes_nothing(root: Path, tools: dict[str, Tool]) -> None:
    before = (root / "a.txt").stat()
    edit = tools["edit_file"]
    assert "not found" in refusal(edit, "a.txt", "four", "4")
    assert "occurs 3 times" in refusal(edit, "a.txt", "e", "E")
    assert "no such file" in refusal(edit, "missing.txt", "a", "b")
    assert "link" in refusal(edit, "out", "secret", "b")
    assert "not a text file" in refusal(edit, "image.bin", "PNG", "b")
    after = (root / "a.txt").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(os.listdir(root)) == ["a.txt", "image.bin", "out", "sub"]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "out", "out/x", "a.txt/x", "x\0", "sub", "new/", "new/a/", "", "\ud800", "image.bin"])
def test_what_cannot_be_written_is_refused_and_nothing_happened(root: Path, tools: dict[str, Tool], path: str) -> None:
    refusal(tools["write_file"], path, "x")
    assert sorted(os.listdir(root)) == ["a.txt", "image.bin", "out", "sub"]
    assert (root.parent / "secret.txt").read_text() == "the secret"
    assert (root / "image.bin").read_bytes() == b"\x89PNG\0\0"


@pytest.mark.parametrize(
    "data",
    [
        "Größe\r\nzwei\r\n".encode(),
        "Größe\r\nzwei\r\n".encode("utf-8-sig"),
        b"\xff\xfe" + "Größe\r\nzwei\r\n".encode("utf-16-le"),
        b"\xfe\xff" + "Größe\nzwei\n".encode("utf-16-be"),
        "Größe für Müller\nzwei\n".encode("latin-1"),
        "Größe\rzwei\r".encode(),
    ],
)
def test_encoding_and_line_ends_stay_in_an_edit_and_in_a_whole_new_text(root: Path, tools: dict[str, Tool], data: bytes) -> None:
    file = root / "b.txt"
    file.write_bytes(data)
    assert "zwei" in tools["read_file"]("b.txt")
    tools["edit_file"]("b.txt", "zwei", "drei\nvier", context=None)
    encoding = next((name for name in ("utf-8", "utf-16") if _decodes(data, name)), "latin-1")
    end = next(end for end in ("\r\n", "\n", "\r") if end in data.decode(encoding))
    edited = data.decode(encoding).replace("zwei", f"drei{end}vier")
    assert file.read_bytes() == data[:0] + _same_bom(data, edited, encoding)
    whole = tools["write_file"]("b.txt", "Größe\nfünf\n", context=None)
    assert "overwritten" in whole
    assert file.read_bytes() == _same_bom(data, ("\ufeff" if data.startswith(b"\xef") else "") + f"Größe{end}fünf{end}", encoding)


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return encoding != "utf-16" or data[:2] in (b"\xff\xfe", b"\xfe\xff")


def _same_bom(data: bytes, content: str, encoding: str) -> bytes:
    if encoding == "utf-16":
        return data[:2] + content.encode("utf-16-le" if data[:2] == b"\xff\xfe" else "utf-16-be")
    return content.encode(encoding)


def test_a_text_that_the_old_encoding_cannot_hold_is_written_as_utf_8_and_that_is_said(root: Path, tools: dict[str, Tool]) -> None:
    (root / "b.txt").write_bytes("Größe für Müller\n".encode("latin-1"))
    assert "Latin-1" in tools["read_file"]("b.txt")
    assert "no character U+20AC" in refusal(tools["edit_file"], "b.txt", "Größe", "5 €")
    assert "It is UTF-8 now; it was LATIN-1." in tools["write_file"]("b.txt", "5 €\n", context=None)
    assert (root / "b.txt").read_text("utf-8") == "5 €\n"


def test_files_are_found_by_name(root: Path, tools: dict[str, Tool]) -> None:
    (root / "sub" / "b.py").write_text("")
    (root / "sub" / ".git").mkdir()
    (root / "sub" / ".git" / "c.py").write_text("")
    find = tools["find_files"]
    assert find("*.py") == "sub/b.py (0 bytes)"
    assert find("*.py", "sub") == find("b.py", str(root / "sub")) == "sub/b.py (0 bytes)"
    assert find("sub/*", "sub") == "[no file matches 'sub/*']"
    assert find("o*") == "out (a link; not followed)"
    assert "relative" in refusal_of_find(find)


def refusal_of_find(find: Tool) -> str:
    with pytest.raises(ToolFailure) as caught:
        find("../*")
    return str(caught.value)


# ---- what was seen ---------------------------------------------------------------------------------------


@looped
async def test_a_file_that_was_not_read_is_not_overwritten_but_may_be_edited(root: Path) -> None:
    refused, edited, read, written = await told(
        root,
        ("write_file", {"path": "a.txt", "content": "x"}),
        ("edit_file", {"path": "a.txt", "old": "two", "new": "2"}),
        ("read_file", {"path": "./a.txt"}),
        ("write_file", {"path": "a.txt", "content": "x\n"}),
    )
    assert refused.failed
    assert refused.effect == "none"
    assert "was not read in this session" in text_of(refused.content)
    assert not edited.failed
    assert (read.failed, written.failed, written.effect) == (False, False, "happened")
    assert (root / "a.txt").read_text() == "x\n"


@looped
async def test_what_somebody_else_has_written_since_is_said_and_not_overwritten(root: Path) -> None:
    def theirs(index: int) -> None:
        if index == 1:
            (root / "a.txt").write_text("theirs\n")

    _, refused, _, written = await told(
        root,
        ("read_file", {"path": "a.txt"}),
        ("write_file", {"path": "a.txt", "content": "mine\n"}),
        ("read_file", {"path": "a.txt", "first_line": 1, "lines": 1}),
        ("write_file", {"path": "a.txt", "content": "mine\n"}),
        between=theirs,
    )
    assert "was changed since it was read" in text_of(refused.content)
    assert (refused.failed, refused.effect) == (True, "none")
    assert not written.failed
    assert (root / "a.txt").read_text() == "mine\n"


@looped
async def test_what_the_session_wrote_itself_it_may_write_again(root: Path) -> None:
    said = await told(
        root,
        ("write_file", {"path": "b.txt", "content": "1\n"}),
        ("write_file", {"path": "b.txt", "content": "2\n"}),
        ("edit_file", {"path": "b.txt", "old": "2", "new": "3"}),
        ("write_file", {"path": "b.txt", "content": "4\n"}),
    )
    assert [message.failed for message in said] == [False] * 4
    assert (root / "b.txt").read_text() == "4\n"


@looped
async def test_an_edit_of_a_file_that_changed_says_so(root: Path) -> None:
    def theirs(index: int) -> None:
        if index == 1:
            (root / "a.txt").write_text("one\ntwo\nthree\nfour\n")

    _, edited, refused = await told(
        root,
        ("read_file", {"path": "a.txt"}),
        ("edit_file", {"path": "a.txt", "old": "two", "new": "2"}),
        ("edit_file", {"path": "a.txt", "old": "five", "new": "5"}),
        between=theirs,
    )
    assert "had been changed since it was read" in text_of(edited.content)
    assert "The file was changed since it was read." in text_of(refused.content)
    assert (root / "a.txt").read_text() == "one\n2\nthree\nfour\n"


@pytest.mark.parametrize("read_before", [False, True])
@looped
async def test_an_edit_is_no_reading_of_what_stands_around_it(root: Path, read_before: bool) -> None:
    def theirs(index: int) -> None:
        if index == 1:
            (root / "a.txt").write_text("one\ntwo\ntheirs\n")

    _, edited, again, refused = await told(
        root,
        ("read_file", {"path": "a.txt" if read_before else "sub/../a.txt"}),
        ("edit_file", {"path": "a.txt", "old": "two", "new": "2"}),
        ("edit_file", {"path": "a.txt", "old": "2", "new": "zwei"}),
        ("write_file", {"path": "a.txt", "content": "mine\n"}),
        between=theirs,
    )
    assert (edited.failed, again.failed) == (False, False)
    assert ("was changed since it was read" if read_before else "was not read in this session") in text_of(refused.content)
    assert (root / "a.txt").read_text() == "one\nzwei\ntheirs\n"


@looped
async def test_a_secret_that_the_model_was_not_shown_is_not_overwritten(root: Path) -> None:
    (root / ".env").write_text("KEY=tr0ub4dor\nX=1\n")
    script = [
        calls(call("c1", "read_file", {"path": ".env"})),
        calls(
            call("c2", "write_file", {"path": ".env", "content": "KEY=[redacted]\nX=2\n"}),
            call("c3", "edit_file", {"path": ".env", "old": "X=1", "new": "X=2"}),
            call("c4", "write_file", {"path": ".env", "content": "KEY=[redacted]\nX=3\n"}),
        ),
        text("Done."),
    ]
    async with unasked(script, extensions=[Files(root), RedactSecrets(["tr0ub4dor"])]) as agent:
        read, refused, edited, again = (message for message in (await agent.run("Set X.")).messages if isinstance(message, ToolMessage))
    assert text_of(read.content) == "KEY=[redacted]\nX=1\n"
    assert (refused.failed, edited.failed, again.failed) == (True, False, True)
    assert (root / ".env").read_text() == "KEY=tr0ub4dor\nX=2\n"


@looped
async def test_another_session_has_not_read_what_this_one_has(root: Path) -> None:
    files = Files(root)
    script = [calls(call("c1", "read_file", {"path": "a.txt"})), text("Read.")]
    script += [calls(call("c2", "write_file", {"path": "a.txt", "content": "x"})), text("Refused.")]
    async with unasked(script, extensions=[files]) as agent:
        await agent.run("Read it.")
        result = await agent.session("other").run("Write it.")
    assert "was not read in this session" in text_of(result.require().messages[-2].content)


@looped
async def test_what_was_read_is_known_to_the_next_process(root: Path) -> None:
    journal = MemoryJournal()
    async with agent_playing(
        [calls(call("c1", "read_file", {"path": "a.txt"})), text("Read.")], extensions=[Files(root)], journal=journal
    ) as agent:
        await agent.run("Read it.")
        notes = await records_of(agent, ExtensionNoted)
    assert [note.data for note in notes] == [{"path": "a.txt", "digest": digest_of(b"one\ntwo\nthree\n")}]
    script = [calls(call("c2", "write_file", {"path": "a.txt", "content": "x\n"})), text("Written.")]
    async with unasked(script, extensions=[Files(root)], journal=journal) as agent:
        await agent.run("Write it.")
        await agent.replay("s")
    assert (root / "a.txt").read_text() == "x\n"


@looped
async def test_reading_the_same_again_is_noted_once(root: Path) -> None:
    script = [calls(call("c1", "read_file", {"path": "a.txt"}), call("c2", "read_file", {"path": "./a.txt"})), text("Read.")]
    async with agent_playing(script, extensions=[Files(root)]) as agent:
        await agent.run("Read it.")
        assert len(await records_of(agent, ExtensionNoted)) <= 2
        memory = agent.live("s").memories
    assert [seen.digests for seen in memory.values() if isinstance(seen, Seen)] == [{"a.txt": digest_of(b"one\ntwo\nthree\n")}]


def test_a_session_that_has_seen_too_much_forgets_the_first() -> None:
    files, memory = Files("."), None
    for number in range(REMEMBERED_MAX + 1):
        memory = files.fold(memory, ExtensionNoted(extension="Files", version=1, data={"path": f"f{number}", "digest": "d"}))
    assert len(memory.digests) == REMEMBERED_MAX
    assert "f0" not in memory.digests
    again = files.fold(memory, ExtensionNoted(extension="Files", version=1, data={"path": "f1", "digest": "e"}))
    assert list(again.digests)[-1] == "f1"
    assert memory.digests["f1"] == "d"
    assert files.fold(again, ExtensionNoted(extension="Other", version=1, data={"path": "x", "digest": "e"})) is again
    for data in (None, [], {}, {"path": "x"}, {"path": 1, "digest": "e"}):
        assert files.fold(again, ExtensionNoted(extension="Files", version=1, data=data)) is again


@looped
async def test_it_keeps_what_the_runtime_relies_on(root: Path) -> None:
    (await check_extension(lambda: Files(root))).require()


@looped
async def test_a_text_that_is_nothing_but_a_local_url_is_for_the_guard_of_urls(root: Path) -> None:
    (root / "a.txt").write_text("see http://localhost:3000\n")
    refused, done = await told(
        root,
        ("edit_file", {"path": "a.txt", "old": "http://localhost:3000", "new": "http://localhost:4000"}),
        ("edit_file", {"path": "a.txt", "old": "see http://localhost:3000", "new": "see http://localhost:4000"}),
    )
    assert "SSRF violation" in text_of(refused.content)
    assert not done.failed


# ---- approvals, crashes, sizes ---------------------------------------------------------------------------


@looped
async def test_the_question_of_an_approval_shows_the_difference(root: Path) -> None:
    made = toolset("coding", root)
    script = [
        calls(
            call("c1", "edit_file", {"path": "a.txt", "old": "two", "new": "2"}),
            call("c2", "read_file", {"path": "a.txt"}),
            call("c3", "write_file", {"path": "b.txt", "content": "new\n"}),
            call("c4", "edit_file", {"path": "a.txt", "old": "zwei", "new": "2"}),
        ),
        text("Done."),
    ]
    async with agent_playing(script, extensions=[*made.extensions, Approvals(when=made.question)]) as agent:
        result = await agent.run("Change it.")
        asked: list[str] = []
        while result.questions:
            [question] = result.questions
            asked.append(question.text)
            if len(asked) == 1:
                assert (root / "a.txt").read_text() == "one\ntwo\nthree\n"
            result = await agent.answer(question.id, Allow())
        assert asked[0] == "May edit_file change a.txt?\n--- a.txt\n+++ a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three"
        assert asked[1].splitlines()[-1] == "+new"
        assert "It would fail: old was not found" in asked[2]
    assert (root / "a.txt").read_text() == "one\n2\nthree\n"
    assert (root / "b.txt").read_text() == "new\n"


def test_what_changes_files_asks_for_approval_and_is_a_barrier(tools: dict[str, Tool]) -> None:
    traits = {name: (tool.traits.on_crash, tool.traits.parallel, tool.traits.requires_approval) for name, tool in tools.items()}
    reads = dict.fromkeys(("list_files", "find_files", "read_file", "search_text"), ("rerun", True, False))
    assert traits == reads | dict.fromkeys(("write_file", "edit_file"), ("report", False, True))


def test_after_a_crash_a_file_that_holds_the_text_was_written(root: Path, tools: dict[str, Tool]) -> None:
    asked = tools["write_file"].reconcile
    assert asked is not None
    (root / "crlf.txt").write_bytes(b"x\r\ny\r\n")
    assert asked("key", {"path": "crlf.txt", "content": "x\ny\n"}) == happened("crlf.txt holds the text")
    for path in ("a.txt", "missing.txt", "out", "../secret.txt", "image.bin"):
        assert asked("key", {"path": path, "content": "the secret"}).found == "unknown", path
    assert did_not_happen() != asked("key", {"path": "a.txt", "content": "x"})


@pytest.fixture
def large(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reading, "FILE_BYTES_MAX", 10_000)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 777)
    monkeypatch.setattr(reading, "PAGE_BYTES_MAX", 2000)
    file = root / "large.log"
    file.write_text("".join(f"line {n} ü\n" for n in range(1, 5001)))
    return file


def test_a_file_that_is_too_large_is_read_in_pages(large: Path, tools: dict[str, Tool]) -> None:
    read = tools["read_file"]
    seen: list[str] = []
    while len(seen) < 5000:
        page, _, note = read("large.log", first_line=len(seen) + 1).rpartition("\n[lines ")
        lines = page.split("\n")
        assert note.startswith(f"{len(seen) + 1} to {len(seen) + len(lines)};")
        seen += lines
    assert seen == [f"line {n} ü" for n in range(1, 5001)]
    assert read("large.log", first_line=4999, lines=1).startswith("line 4999 ü\n[lines 4999 to 4999; ")
    with pytest.raises(ToolFailure, match="only 5,000 lines"):
        read("large.log", first_line=5001)
    large.write_bytes(large.read_bytes()[:-1])
    for first in (5001, 6000):
        with pytest.raises(ToolFailure, match="only 5,000 lines"):
            read("large.log", first_line=first)


def test_a_file_that_is_too_large_is_not_overwritten(root: Path, tools: dict[str, Tool]) -> None:
    with (root / "large.log").open("wb") as file:
        file.truncate(reading.FILE_BYTES_MAX + 1)
    assert "larger than" in refusal(tools["write_file"], "large.log", "x")
    assert "larger than" in refusal(tools["edit_file"], "large.log", "x", "y")


def test_a_line_longer_than_a_page_is_cut_at_a_character(large: Path, tools: dict[str, Tool]) -> None:
    large.write_text("ü" * 20_000)
    said = tools["read_file"]("large.log")
    assert said.split("\n")[0] == "ü" * 998
    assert "\N{REPLACEMENT CHARACTER}" not in said


def test_a_page_is_not_looked_for_for_ever(large: Path, tools: dict[str, Tool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PAGE_S", -1.0)
    with pytest.raises(ToolFailure, match="too far down"):
        tools["read_file"]("large.log", first_line=4000)


@pytest.mark.parametrize("head", [b"\0", b"\xff\xfe"])
def test_a_large_file_that_is_no_plain_text_is_refused(large: Path, tools: dict[str, Tool], head: bytes) -> None:
    large.write_bytes(head + b"x" * 20_000)
    with pytest.raises(ToolFailure):
        tools["read_file"]("large.log")


@looped
async def test_a_question_about_a_large_change_is_cut_and_says_so(root: Path) -> None:
    made = toolset("coding", root)
    content = "".join(f"line {n}\n" for n in range(1000)) + "x" * 5000
    script = [calls(call("c1", "write_file", {"path": "b.txt", "content": content}))]
    async with agent_playing(script, extensions=[*made.extensions, Approvals(when=made.question)]) as agent:
        [question] = (await agent.run("Write it.")).questions
    lines = question.text.split("\n")
    assert len(lines) == 202
    assert lines[101] == "[... 805 lines are left out here ...]"
    assert max(map(len, lines)) < 420
    assert "line 999" in lines[-3]
    assert content.splitlines()[500] in question.arguments


@pytest.mark.parametrize("spelling", ["code/.git/hook", "{root}/.git/hook", "{root}//./.git/./hook", "code//.git/hook"])
@looped
async def test_a_policy_reads_one_spelling_of_several_roots(root: Path, tmp_path: Path, spelling: str) -> None:
    (tmp_path / "manual").mkdir()
    policy = tmp_path / "policy.toml"
    policy.write_text('version = 1\nname = "p"\ndefault = "allow"\n[[deny]]\ntool = "*"\npath = "code/.git/**"\n')
    files = Files({"code": root, "manual": tmp_path / "manual"}, approval=False)
    script = [calls(call("c1", "write_file", {"path": spelling.format(root=root), "content": "x\n"})), text("Done.")]
    async with unasked(script, extensions=[files, Permissions(policy)]) as agent:
        (told,) = (message for message in (await agent.run("Write it.")).messages if isinstance(message, ToolMessage))
    assert "denies this call" in text_of(told.content)
    assert not (root / ".git").exists()


@looped
async def test_the_names_of_several_roots_are_told(root: Path) -> None:
    files = Files({"code": root, "more": root / "sub"})
    model = ScriptedModel([calls(call("c1", "write_file", {"path": "more/b.txt", "content": "x"})), text("Done.")])
    async with unasked(model, extensions=[files]) as agent:
        await agent.run("Go.")
    assert "code, more" in str(model.bodies[0]["messages"][0])
    assert (root / "sub" / "b.txt").read_text() == "x"
    assert Files(root).instructions(None) is None  # type: ignore[arg-type]


def test_finding_is_bounded(root: Path, tools: dict[str, Tool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "ENTRIES_MAX", 1)
    assert tools["find_files"]("*").splitlines() == [
        "a.txt (14 bytes)",
        "[only the first 1 files are shown; name a directory further down]",
    ]
    monkeypatch.setattr(reading, "FIND_S", -1.0)
    assert tools["find_files"]("*").startswith("[stopped early")


# ---- the sets --------------------------------------------------------------------------------------------


@looped
async def test_a_set_is_what_an_agent_takes(root: Path) -> None:
    for name in TOOLSETS:
        made = toolset(name, root)
        async with await Agent.create(
            ScriptedModel([text("Hello.")]), config=AgentRunConfig(session_id="s"), tools=made.tools, extensions=made.extensions
        ) as agent:
            assert set(made.names) <= set(agent.parts.tools)
            assert (await agent.run("Hi.")).text == "Hello."
    assert toolset("readonly", root).names == ("list_files", "find_files", "read_file", "search_text")
    assert set(toolset("coding", root).names) >= {"read_file", "write_file", "edit_file", "run_command", "run_python", "ask_user"}
    assert Roots([root / "sub", root]).first == root / "sub"
    with pytest.raises(Exception, match="there is no set of tools 'x'; there are readonly, coding"):
        toolset("x", root)
