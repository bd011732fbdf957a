"""The lead's side of a federation over NVFlare: submits the job of a run, and follows it to its end."""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from nvflare.apis.fl_exception import FLCommunicationError
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.fuel.flare_api import api_spec
from nvflare.fuel.flare_api.flare_api import Session, new_secure_session
from nvflare.fuel.hci.proto import MetaKey, MetaStatusValue

from fedlit.core.errors import ConfigError, TrainingError
from fedlit.sites.connection import Unreachable, kit_of
from fedlit.sites.messages import printable
from fedlit.sites.server import Ending
from fedlit.sites.submission import JOB, TOPIC, Lead, Submission, write_job

CONNECTING = 5
"""Seconds that a server has to answer."""

LOOK = 0.5
"""Seconds between two checks of a job."""

SIDEWARD = 5
"""Seconds between two checks whether sites have lost the job."""

STARTING, LOADING = 60, 600
"""Seconds that a submitted job has to start (NVFlare retries at growing intervals), and then to answer."""

STRANDED = 3
"""Number of times in a row that a connected site must be seen without the job before it counts as stranded."""

GONE = 5
"""Seconds without an answer after which a job counts as gone, although NVFlare still calls it running."""

ENDING = 60
"""Seconds that a job may take to end after it was aborted, or has lost a part."""

ENDED = tuple(status.value for status in RunStatus if status.value.startswith("FINISHED"))
"""NVFlare's statuses of a job that has ended."""

UNANSWERED = (
    api_spec.NoConnection, api_spec.SessionClosed, api_spec.NoReply, api_spec.InternalError,
    api_spec.NoClientsAvailable, api_spec.InvalidTarget, api_spec.CommandError, FLCommunicationError, RuntimeError,
    OSError,
)  # fmt: skip
"""Errors of a server that does not answer, or not now."""

DISABLED = "is disabled"
"""NVFlare's message for a name on its list of disabled clients."""

REFUSED = (api_spec.AuthenticationError, api_spec.AuthorizationError)

Answer = TypeVar("Answer")


@dataclass
class Link:
    """A connection to the server that is restored after it was lost."""

    lead: Lead  # The lead.
    say: Callable[[str], None]  # Called with each line for the user.
    _session: Session | None = None
    _lost: bool = False

    def ask(self, question: Callable[[Session], Answer]) -> Answer | None:
        """Ask the server; return None if it does not answer.

        Raises:
            ConfigError: If the server does not accept the lead or is of another federation, or the lead's certificate
                is refused or has expired.
        """
        try:
            if self._session is None:
                kit = kit_of(self.lead.folder)
                list(kit.checks() if kit else ())  # an attempt of NVFlare leaves threads that keep the process alive
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
        except (*UNANSWERED, Unreachable) as error:
            self.close()
            if DISABLED in f"{error} {error.__context__}":
                raise ConfigError(
                    f"--sites {self.lead.folder}: the server refuses the certificate of {self.lead.user}, which "
                    "its administrator has disabled; ask the administrator"
                ) from error
            if not self._lost:
                self.say(f"the server does not answer ({str(error) or type(error).__name__}); waiting for it")
            self._lost = True
            return None

    def close(self) -> None:
        """Close the connection: a process with an open one does not end."""
        session, self._session = self._session, None
        if session is not None:
            with suppress(Exception), _quiet():
                session.close()


@contextmanager
def _quiet() -> Iterator[None]:
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


@dataclass
class Job:
    """A job that is followed."""

    id: str  # NVFlare's id.
    began: float = field(default_factory=time.monotonic)  # When it was submitted.
    seen: int = 0  # Number of its lines that were shown.
    run: str | None = None  # Name of its run at the server, once it has a directory.
    answered: bool = False  # Whether it has ever answered.
    gone: float | None = None  # Since when the server answers that it does not run.
    without: dict[str, int] = field(default_factory=dict)  # How often in a row each connected site was seen without it.
    lost: list[str] = field(default_factory=list)  # Sites that cannot answer it any more.
    cut: bool = False  # Whether this command has aborted it.
    looked: float = 0.0  # When sites were last checked.

    @property
    def resumption(self) -> str:
        """The command with which a lead resumes the run."""
        return f"the same command with {f'--name {self.run} ' if self.run else ''}--ckpt_path last"


class Follower:
    """Submits a lead's run as a job, unless one is running it, and shows its lines to its end.

    It never submits a second job: if a part of the federation dies, it ends with the command that resumes the run.
    """

    def __init__(self, lead: Lead, submission: Submission, say: Callable[[str], None]) -> None:
        self._lead, self._submission = lead, submission
        self._say: Callable[[str], None] = lambda line: say(printable(line))
        self._link = Link(lead, self._say)
        self._asked_to_stop = False
        self._asked_to_run = False
        self._job: Job | None = None

    def run(self) -> Ending:
        """Submit and follow the run until it has ended; a job that already runs it is only followed.

        Raises:
            TrainingError: If the run or its job has failed; names the reason, and what to type to resume.
            ConfigError: If the server does not accept the lead or the job.
            KeyboardInterrupt: After a second Ctrl-C, which aborts the job.
        """
        try:
            self._job = self._found()
            if self._job is None:
                self._wait_for_sites()
                self._job = Job(self._submit())
            return self._follow(self._job)
        except (KeyboardInterrupt, SystemExit):
            self._say(self._left())
            raise
        finally:
            self._link.close()

    def _found(self) -> Job | None:
        """Return the lead's job that is running the run to resume; None if there is none."""
        if self._submission.resumes is None:
            return None
        asked = {"since": 0, "means": {"experiment": self._submission.resumes, "name": self._submission.resumed_name}}
        for job in map(Job, self._at_work()):
            while (report := self._command(job, asked)) is None or report["means"] is None:
                status = self._status(job)
                died = status == RunStatus.RUNNING.value and job.gone and time.monotonic() - job.gone > STARTING
                if status in ENDED or died or (report and report["ended"]):
                    break
                time.sleep(LOOK)
            if report and report["means"]:
                self._say("a job is running this run, with the configuration with which it was submitted: showing it")
                return job
        return None

    def _at_work(self) -> list[str]:
        """Return the ids of this lead's jobs that have not ended, the newest first."""
        while (jobs := self._link.ask(lambda session: session.list_jobs(detailed=True, reverse=True))) is None:
            time.sleep(LOOK)
        of_lead = [job for job in jobs if job.get(JobMetaKey.SUBMITTER_NAME.value) == self._lead.user]
        return [
            job[JobMetaKey.JOB_ID.value]
            for job in of_lead
            if job.get(JobMetaKey.JOB_NAME.value) == JOB and job.get(JobMetaKey.STATUS.value) not in ENDED
        ]

    def _left(self) -> str:
        """Return a message about what happens to the run if this command ends before it."""
        job = self._job
        if job is None and not self._asked_to_run and self._submission.resumes is None:
            return "no job was submitted"
        if job is None:
            return (
                "this command has not seen a job of its run, but one may be running. To check: the same command with "
                "--ckpt_path last"
            )
        if job.cut and job.gone is None and self._status(job) not in ENDED:
            return (
                f"the server does not answer, so the job may or may not continue. To check and to resume: "
                f"{job.resumption}"
            )
        if job.cut:
            return f"the job was aborted. To resume from the last checkpoint: {job.resumption}"
        return f"the job continues at the server. To see it again, or to end it: {job.resumption}"

    def _wait_for_sites(self) -> None:
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
        """Submit a job exactly once, even if the server dies meanwhile; return its id."""
        token = uuid4().hex
        with tempfile.TemporaryDirectory(prefix="fedlit-job-") as folder:
            path = write_job(Path(folder) / "fedlit", self._lead.sites, self._submission)
            self._asked_to_run = True
            while True:
                try:
                    job = self._link.ask(lambda session: session.submit_job(str(path), submit_token=token))
                except api_spec.InvalidJobDefinition as error:
                    raise ConfigError(f"the server does not accept the job: {error}") from error
                if job is not None:
                    return job
                time.sleep(LOOK)

    def _follow(self, job: Job) -> Ending:
        """Show a job to the end of its run."""
        while True:
            try:
                if (ending := self._look(job)) is not None:
                    return ending
                status = self._status(job)
                if status in ENDED:
                    return self._without_report(job, f"the job has ended ({status})")
                if reason := self._dead(job, status):
                    self._abort(job)
                    return self._without_report(job, reason)
                time.sleep(LOOK)
            except KeyboardInterrupt:
                if self._asked_to_stop:
                    with suppress(ConfigError):
                        self._abort(job)
                    raise
                self._asked_to_stop = True
                self._say("stopping after this round; Ctrl-C again aborts it")
                self._command(job, {"since": job.seen, "stop": True})

    def _look(self, job: Job) -> Ending | None:
        """Show what a job has printed; return how its run ended, or None while it runs."""
        asked = {"since": job.seen, "lost": job.lost} | ({"stop": True} if self._asked_to_stop else {})
        report = self._command(job, asked)
        if report is None:
            return None
        for line in report["lines"]:
            self._say(line)
        job.seen += len(report["lines"])
        job.answered, job.run = True, report["name"] or job.run
        if report["ended"] is None:
            return None
        ending = Ending(**report["ended"])
        self._command(job, {"since": job.seen, "heard": True})
        if ending.kind == "failed":
            raise TrainingError(ending.reason)
        return self._without_report(job, ending.reason) if ending.kind == "away" else ending

    def _without_report(self, job: Job, reason: str) -> Ending:
        """Wait until a job has ended whose run has not.

        Raises:
            TrainingError: Unless the lead has asked the run to stop; names what to type to resume.
        """
        self._wait_for_end(job)
        if self._asked_to_stop:
            return Ending("stopped")
        raise TrainingError(
            f"{reason}; to resume from the last checkpoint: {job.resumption}. The logs of the server and of the sites "
            "have the details"
        )

    def _command(self, job: Job, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Send a command to the job; return None if it does not run, or has not answered."""

        def ask(session: Session) -> dict[str, Any] | None:
            try:
                report = session.do_app_command(job.id, TOPIC, asked)
            except (api_spec.JobNotRunning, api_spec.JobNotFound):
                job.gone = job.gone or time.monotonic()
                return None
            except (api_spec.NoReply, api_spec.InternalError, RuntimeError):  # the job is starting or busy
                return None
            job.gone = None
            return report

        return self._link.ask(ask)

    def _status(self, job: Job) -> str | None:
        """Return NVFlare's status of the job; None if the server does not answer."""

        def ask(session: Session) -> str:
            try:
                return str(session.get_job_meta(job.id).get("status"))
            except api_spec.JobNotFound:
                return RunStatus.ABANDONED.value

        return self._link.ask(ask)

    def _dead(self, job: Job, status: str | None) -> str:
        """Return why a job counts as dead that NVFlare has not ended, or ""; also look for sites that have lost it."""
        now = time.monotonic()
        if status is None:
            job.looked = now  # a server that has just restarted does not know its sites yet
            return ""
        running = status == RunStatus.RUNNING.value
        job.gone = job.gone if running else None
        if not job.answered:
            return f"the job does not start ({status})" if now - job.began > (LOADING if running else STARTING) else ""
        if job.gone is not None and now - job.gone > GONE:
            return "the server no longer runs the job"
        if now - job.looked > SIDEWARD:
            job.looked = now
            if new := [name for name in self._stranded(job) if name not in job.lost]:
                self._say(
                    f"{', '.join(new)} reconnected without the job, and takes part again in the next one: "
                    "federation.on_site_error decides whether this one continues"
                )
                job.lost += new
        return ""

    def _stranded(self, job: Job) -> list[str]:
        """Return connected sites that have been without the job for a while: NVFlare does not give it back to them."""

        def ask(session: Session) -> list[dict[str, Any]] | None:
            try:
                return session.get_client_job_status()
            except api_spec.NoClientsAvailable:
                return None

        jobs: dict[str, set[str]] = {}
        for row in self._link.ask(ask) or ():  # one row per job of a site
            if row.get(MetaKey.STATUS) not in (MetaStatusValue.NO_REPLY, MetaStatusValue.ERROR):
                jobs.setdefault(row.get(MetaKey.CLIENT_NAME, ""), set()).add(row.get(MetaKey.JOB_ID, ""))
        for name in self._lead.sites:
            without = name in jobs and job.id not in jobs[name]
            job.without[name] = job.without.get(name, 0) + 1 if without else 0
        return sorted(name for name, times in job.without.items() if times >= STRANDED)

    def _abort(self, job: Job) -> None:
        job.cut = True
        if self._link.ask(lambda session: _abort(session, job.id)):
            self._wait_for_end(job)

    def _wait_for_end(self, job: Job) -> None:
        """Wait until a job has ended; abort it if it does not end."""
        began = time.monotonic()
        while self._status(job) not in ENDED and job.gone is None and time.monotonic() - began < ENDING:
            self._command(job, {"since": job.seen})
            if not job.cut and time.monotonic() - began > ENDING / 2:
                job.cut = True
                self._link.ask(lambda session: _abort(session, job.id))
            time.sleep(LOOK)


def _abort(session: Session, job: str) -> bool:
    with suppress(api_spec.JobNotRunning, api_spec.JobNotFound, api_spec.InternalError):
        session.abort_job(job)
    return True
