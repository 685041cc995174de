"""Approvals over processes: a question outlives the one that asked, an answer is taken once, and what was approved runs at most once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from approving import HOUR_S, agent_of, killed, said, start
from interlock import Allow, CommandRefused, Edit, Outcome
from interlock.messages import ToolMessage
from interlock.records import HandlerStarted, QuestionAnswered, ToolStepEnded
from interlock.testing import call, calls, text
from threaded import serving

PAY = calls(call("c1", "pay", {"amount": 5}))


class Desk:
    """A journal and a ledger, and what this process does with them."""

    def __init__(self, folder: Path, base_url: str) -> None:
        self.ledger = folder / "ledger"
        self.where: dict[str, Any] = {"base_url": base_url, "journal": folder / "agent.db", "ledger": self.ledger}

    def paid(self) -> list[str]:
        return self.ledger.read_text().split() if self.ledger.exists() else []

    def does(self, work: Any, *, later_s: float = 0.0) -> Any:
        """``work(agent)``, in this process, so many seconds from now by its clock."""

        async def main() -> Any:
            where = self.where
            clock = lambda: time.time() + later_s  # noqa: E731
            async with await agent_of(where["base_url"], str(where["journal"]), where["ledger"], clock=clock) as agent:
                return await work(agent)

        return asyncio.run(main())


def of(kind: Any) -> Any:
    async def read(agent: Any) -> Any:
        return [row.record for row in await agent.session("desk").records() if isinstance(row.record, kind)]

    return read


def test_a_question_outlives_kill_9_and_is_answered_hours_later_by_another_process(tmp_path: Path) -> None:
    with serving([PAY, text("Paid.")]) as server:
        desk = Desk(tmp_path, server.base_url)
        id = killed("ask", **desk.where)
        assert desk.paid() == []
        waiting = desk.does(lambda agent: agent.resume(), later_s=4 * HOUR_S)
        assert [question.id for question in waiting.questions] == [id]
        result = desk.does(lambda agent: agent.answer(id, Allow()), later_s=4.9 * HOUR_S)
        assert (result.text, desk.paid()) == ("Paid.", ["5"])
        with pytest.raises(CommandRefused):
            desk.does(lambda agent: agent.answer(id, Allow()))
    assert desk.paid() == ["5"]


def test_a_question_that_was_not_stored_when_the_process_died_is_asked_again_and_nothing_has_run(tmp_path: Path) -> None:
    with serving([PAY, PAY, text("Paid.")]) as server:  # what was not waited for is lost: the response is asked for again
        desk = Desk(tmp_path, server.base_url)
        killed("ask unstored", **desk.where)
        assert desk.paid() == []
        waiting = desk.does(lambda agent: agent.resume())
        assert (waiting.outcome, desk.paid()) == (Outcome.WAITING, [])
        desk.does(lambda agent: agent.answer(waiting.questions[0].id))
        assert desk.paid() == ["5"]


def test_time_runs_out_while_nobody_is_there_and_that_is_a_denial(tmp_path: Path) -> None:
    with serving([PAY, text("Then not.")]) as server:
        desk = Desk(tmp_path, server.base_url)
        id = killed("ask", **desk.where)
        with pytest.raises(CommandRefused, match="expired"):
            desk.does(lambda agent: agent.answer(id, Allow("tool")), later_s=5.1 * HOUR_S)
        assert desk.does(lambda agent: agent.resume(), later_s=5.1 * HOUR_S).text == "Then not."
    assert desk.paid() == []


def test_an_approved_call_whose_process_died_after_the_effect_is_unknown_and_never_run_again(tmp_path: Path) -> None:
    with serving([PAY, text("I must check."), calls(call("c2", "pay", {"amount": 5}))]) as server:
        desk = Desk(tmp_path, server.base_url)
        id = killed("ask", **desk.where)
        killed("answer and die", **desk.where, question=id)
        assert desk.paid() == ["5"]
        result = desk.does(lambda agent: agent.resume())
        assert (result.text, desk.paid()) == ("I must check.", ["5"])
        (ended,) = desk.does(of(ToolStepEnded))
        assert (ended.effect, len(desk.does(of(HandlerStarted)))) == ("unknown", 1)
        (message,) = [message for message in result.messages if isinstance(message, ToolMessage)]
        assert "may have happened" in str(message.content)
        again = desk.does(lambda agent: agent.run("Once more."))  # the approval was for that call: another one is another question
        assert (again.outcome, desk.paid()) == (Outcome.WAITING, ["5"])


def test_an_answer_that_was_stored_before_the_process_died_is_not_asked_for_again(tmp_path: Path) -> None:
    with serving([PAY, text("Paid.")]) as server:
        desk = Desk(tmp_path, server.base_url)
        id = killed("ask", **desk.where)

        async def edit(agent: Any) -> Any:
            return await agent.answer(id, Edit({"amount": 3}))

        second = desk.does(edit).questions[0]
        assert second.arguments == '{"amount":3}'
        result = desk.does(lambda agent: agent.answer(second.id, Allow("session")))
        assert (result.text, desk.paid()) == ("Paid.", ["3"])
        assert [record.verdict for record in desk.does(of(QuestionAnswered))] == ["edit", "answer"]


def test_of_two_processes_that_answer_at_the_same_time_one_wins_and_it_runs_once(tmp_path: Path) -> None:
    with serving([PAY, text("Paid.")]) as server:
        desk = Desk(tmp_path, server.base_url)
        id = killed("ask", **desk.where)
        both = [start("answer", **desk.where, question=id) for _ in range(2)]
        try:
            assert [said(process) for process in both] == ["", ""]
            for process in both:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            outcomes = sorted(said(process) for process in both)
        finally:
            for process in both:
                process.kill()
                process.communicate()
        (refused,) = [outcome for outcome in outcomes if outcome != "COMPLETED"]
        assert refused in ("CommandRefused", "SessionBusy")
        assert desk.paid() == ["5"]
        assert len(desk.does(of(QuestionAnswered))) == 1
