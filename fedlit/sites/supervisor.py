"""The lead's half of a federation over NVFlare: submits the job, shows its rounds, and submits it again where it has died."""

import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.apis.job_def import RunStatus
from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.sites.hosting import Ending
from fedlit.sites.submission import TOPIC, Lead, Submission, write_job

LOOK = 0.5
"""Seconds between two looks at a job."""

SIDEWARD = 5
"""Seconds between two looks at whether sites have lost the job."""

CONNECTING = 5
"""Seconds for which a server may take to answer."""

STARTING, LOADING = 60, 600
"""Seconds within which a job that was submitted has to run, as NVFlare asks ever more seldom whether it can; and then to speak."""

STRANDED = 3
"""So often in a row a site that is there is seen without the job, until it is believed."""

STOPPING = 600
"""Seconds that a round may take to its end where the job has to end; then it is cut off, and repeated."""

GONE = 5
"""Seconds after which a job is believed to be gone that NVFlare still calls running: its server has died meanwhile."""

ENDING = 60
"""Seconds that a job may take to its end where there is nothing to wait for."""

ATTEMPTS = 5
"""How often a run is submitted again without any progress in between."""

UNANSWERED = (
    api_spec.NoConnection, api_spec.SessionClosed, api_spec.NoReply, api_spec.InternalError, api_spec.NoClientsAvailable,
    api_spec.InvalidTarget, api_spec.CommandError, FLCommunicationError, RuntimeError, OSError,
)  # fmt: skip
"""What is raised where a server does not answer, or not now."""

REFUSED = (api_spec.AuthenticationError, api_spec.AuthorizationError)

ENDED = tuple(status.value for status in RunStatus if status.value.startswith("FINISHED"))
"""NVFlare's words for a job that runs no more."""

Answer = TypeVar("Answer")


@dataclass
class Link:
    """A connection to the server that comes back after it was lost.

    Attributes:
        lead: Who asks.
        say: Takes a line for the person who waits.
    """

    lead: Lead
    say: Callable[[str], None]
    _session: Session | None = None
    _lost: bool = False

    def ask(self, question: Callable[[Session], Answer]) -> Answer | None:
        """Ask the server; None where it does not answer.

        Raises:
            ConfigError: It does not take the lead for one.
        """
        try:
            if self._session is None:
                with _quiet():
                    self._session = new_secure_session(self.lead.user, str(self.lead.folder), timeout=CONNECTING)
                if self._lost:
                    self.say("the server answers again")
                self._lost = False
            with _quiet():
                return question(self._session)
        except REFUSED as error:
            self.close()
            raise ConfigError(f"--sites {self.lead.folder}: the server refuses {self.lead.user}: {error}") from error
        except UNANSWERED as error:
            self.close()
            if not self._lost:
                self.say(f"the server does not answer ({str(error) or type(error).__name__}); waiting for it")
            self._lost = True
            return None

    def close(self) -> None:
        """Close it: a process with an open one does not end."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception), _quiet():
                session.close()


@dataclass
class Watched:
    """What is known of a job.

    Attributes:
        id: NVFlare's.
        began: When it was submitted.
        seen: How many of its lines were shown.
        told: What it has told last.
        gone: Since when the server answers that it does not run, though it has told something.
        without: How often in a row a site that is there was seen without it.
        stopping: When it was asked to end after its round.
        lost: Sites that cannot answer it any more.
        cut: Whether it was aborted from here.
        looked: When sites were last looked at.
    """

    id: str
    began: float = field(default_factory=time.monotonic)
    seen: int = 0
    told: dict[str, Any] = field(default_factory=dict)
    gone: float | None = None
    without: dict[str, int] = field(default_factory=dict)
    stopping: float | None = None
    lost: list[str] = field(default_factory=list)
    cut: bool = False
    looked: float = 0.0


class Supervisor:
    """Run a federation over the sites of a lead, as one run, whatever dies meanwhile.

    Args:
        lead: Who submits, and to which sites.
        submission: What is to be run.
        say: Takes a line for the person who waits.
    """

    def __init__(self, lead: Lead, submission: Submission, say: Callable[[str], None]) -> None:
        self._lead, self._submission, self._say = lead, submission, say
        self._link = Link(lead, say)
        self._run = "" if submission.resumes else uuid4().hex
        self._asked_to_stop = False

    def run(self) -> Ending:
        """Submit, watch, and submit again, until the run has ended.

        Raises:
            TrainingError: It cannot go on; gives the reason.
            ConfigError: The server does not take the lead for one, or the job for one of its own.
            KeyboardInterrupt: A second Ctrl-C: the job is cut off.
        """
        try:
            return self._supervise()
        finally:
            self._link.close()

    def _supervise(self) -> Ending:
        kept, fruitless = -1, 0
        while True:
            self._wait_for_sites()
            job = Watched(self._submit())
            try:
                ending = self._watch(job)
            except (ConfigError, KeyboardInterrupt):
                with suppress(ConfigError):
                    self._abort(job)
                raise
            if ending is not None and ending.kind == "failed":
                raise TrainingError(ending.reason)
            if ending is not None and (ending.kind == "finished" or self._asked_to_stop):
                return ending
            if self._asked_to_stop:
                return Ending("stopped")
            self._wait_for_end(job)
            if not job.cut and self._status(job) == RunStatus.FINISHED_ABORTED.value:
                raise TrainingError(
                    "somebody has aborted the job with NVFlare's own commands; go on with --ckpt_path last"
                )
            self._run = job.told.get("run") or self._run
            progress = int(job.told.get("kept", 0))
            kept, fruitless = max(kept, progress), 0 if progress > kept else fruitless + 1
            if fruitless > ATTEMPTS:
                reason = ending.reason if ending else "look at the logs of the server and of the sites"
                raise TrainingError(f"the job has ended {fruitless} times without a new checkpoint: {reason}")
            self._say("the run goes on from its last checkpoint, in a new job")

    def _wait_for_sites(self) -> None:
        """Wait until all sites are there."""
        said: set[str] | None = None
        while True:
            info = self._link.ask(lambda session: session.get_system_info())
            if info is not None:
                missing = set(self._lead.sites) - {client.name for client in info.client_info}
                if not missing:
                    return
                if missing != said:
                    self._say(f"waiting for {', '.join(sorted(missing))}")
                said = missing
            time.sleep(LOOK)

    def _submit(self) -> str:
        """Submit a job, once, also where the server dies meanwhile; returns NVFlare's id of it.

        Raises:
            ConfigError: It is not taken.
        """
        token = uuid4().hex
        with tempfile.TemporaryDirectory(prefix="fedlit-job-") as folder:
            path = write_job(Path(folder) / "fedlit", self._lead.sites, self._run, self._submission)
            while True:
                try:
                    job = self._link.ask(lambda session: session.submit_job(str(path), submit_token=token))
                except api_spec.InvalidJobDefinition as error:
                    raise ConfigError(f"the server does not take the job: {error}") from error
                if job is not None:
                    return job
                time.sleep(LOOK)

    def _watch(self, job: Watched) -> Ending | None:
        """Follow a job to its end; None where it died without a word."""
        while True:
            try:
                if (ending := self._told(job)) is not None:
                    return ending
                status = self._status(job)
                if status in ENDED:
                    self._say(f"the job has ended: {status}")
                    return None
                if self._is_over(job, status):
                    self._abort(job)
                    return None
                time.sleep(LOOK)
            except KeyboardInterrupt:
                if self._asked_to_stop:
                    raise
                self._asked_to_stop = True
                self._say("stopping after this round; Ctrl-C again cuts it off")
                self._stop(job)

    def _told(self, job: Watched) -> Ending | None:
        """Show what a job has printed; returns how its run ended, once it has."""
        asked = {"since": job.seen} | ({"stop": True, "lost": job.lost} if job.stopping is not None else {})
        told = self._command(job, asked)
        if told is None:
            return None
        for line in told["lines"]:
            self._say(line)
        job.seen += len(told["lines"])
        job.told = told
        if told["ended"] is None:
            return None
        self._command(job, {"since": job.seen, "heard": True})
        if told["ended"]["kind"] == "away":
            self._say(told["ended"]["reason"])
        return Ending(**told["ended"])

    def _command(self, job: Watched, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Ask the job itself; None where it does not run, or has not answered."""

        def ask(session: Session) -> dict[str, Any] | None:
            try:
                told = session.do_app_command(job.id, TOPIC, asked)
            except (api_spec.JobNotRunning, api_spec.JobNotFound):
                job.gone = job.gone or time.monotonic()
                return None
            except (api_spec.NoReply, api_spec.InternalError, RuntimeError):  # it begins, or is busy
                return None
            job.gone = None
            return told

        return self._link.ask(ask)

    def _status(self, job: Watched) -> str | None:
        """NVFlare's word for how the job is; None where the server does not answer."""

        def ask(session: Session) -> str:
            try:
                return str(session.get_job_meta(job.id).get("status"))
            except api_spec.JobNotFound:
                return RunStatus.ABANDONED.value

        return self._link.ask(ask)

    def _is_over(self, job: Watched, status: str | None) -> bool:
        """Whether a job has to be cut off: it does not start, or it was asked to end and does not."""
        now = time.monotonic()
        if status is None:
            job.looked = now  # a server that has just come back knows nothing of its sites yet
            return False
        running = status == RunStatus.RUNNING.value
        job.gone = job.gone if running else None
        if job.gone is not None and now - job.gone > GONE:
            self._say(f"the server does not run the job any more ({status})")
            return True
        if not job.told:
            if now - job.began <= (LOADING if running else STARTING):
                return False
            self._say(f"the job does not start ({status})")
            return True
        if job.stopping is not None and now - job.stopping > STOPPING:
            self._say(f"the round has not ended within {STOPPING} s, and is cut off")
            return True
        if job.stopping is None and now - job.looked > SIDEWARD:
            job.looked = now
            if stranded := self._stranded(job):
                self._say(f"{', '.join(stranded)} came back without the job, which ends after this round")
                self._stop(job, stranded)
        return False

    def _stranded(self, job: Watched) -> list[str]:
        """Sites that are there and have been without the job for a while: NVFlare does not give it back to them."""

        def ask(session: Session) -> list[dict[str, Any]] | None:
            try:
                return session.get_client_job_status()
            except api_spec.NoClientsAvailable:
                return None

        for site in self._link.ask(ask) or ():
            name = site.get("client_name", "")
            without = name in self._lead.sites and job.id not in json.dumps(site)
            job.without[name] = job.without.get(name, 0) + 1 if without else 0
        return sorted(name for name, times in job.without.items() if times >= STRANDED)

    def _stop(self, job: Watched, lost: Sequence[str] = ()) -> None:
        """Let a job end after its round, without sites that cannot answer any more."""
        job.stopping, job.lost = time.monotonic(), list(lost)
        self._command(job, {"since": job.seen, "stop": True, "lost": job.lost})

    def _abort(self, job: Watched) -> None:
        """Cut a job off, and wait until it is gone."""
        job.cut = True
        self._link.ask(lambda session: _abort(session, job.id))
        self._wait_for_end(job)

    def _wait_for_end(self, job: Watched) -> None:
        """Wait until a job runs no more; one that does not go is cut off."""
        began = time.monotonic()
        while self._status(job) not in ENDED and job.gone is None and time.monotonic() - began < ENDING:
            self._command(job, {"since": job.seen})
            if not job.cut and time.monotonic() - began > ENDING / 2:
                job.cut = True
                self._link.ask(lambda session: _abort(session, job.id))
            time.sleep(LOOK)


def _abort(session: Session, job: str) -> None:
    with suppress(api_spec.JobNotRunning, api_spec.JobNotFound, api_spec.InternalError):
        session.abort_job(job)


@contextmanager
def _quiet() -> Iterator[None]:
    """Within, NVFlare prints nothing: the person who waits hears of the run alone."""
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield
