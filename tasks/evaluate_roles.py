"""kind: evaluate with roles — teams on the same held-out problems, each model in the roles of the policy `model`.

`tasks.evaluate` compares the models; here an evaluation of one of them plays episodes of all roles instead.
"""

from learning.data.row_journal import RowJournal
from learning.evaluation.evaluated import Evaluated
from learning.evaluation.role_scores import average_roles
from learning.evaluation.team_episodes import TeamEpisode, play_rows, score_roles
from learning.generation.replicas.engine_loading import load_sampling_policy, make_engine
from learning.lookup import bind
from learning.samples.engine_protocol import Sampling
from learning.sampling.conversations import ConversationSampler
from learning.sampling.speakers import Played, close_speakers, make_speakers
from schemas.roles import MAIN
from schemas.stages.evaluate import Evaluate
from tasks.context import Context, Result
from tasks.evaluate import Evaluation, compare_models, refuse_no_scores
from tasks.remote import recall_tokens


def run(stage: Evaluate, context: Context) -> Result:
    """Play every team's episodes on every problem, score the roles, and report; `flows` acts on the gates."""
    return compare_models(stage, context, TeamEvaluation)


class TeamEvaluation(Evaluation):
    """Teams evaluated one after the other."""

    def evaluate(self, port: str, seed: int) -> Evaluated:
        """Return the episodes of one team and their scores: the mean over the roles that the model plays."""
        stage = self.stage
        speaking = {role: spec for role, spec in stage.roles.items() if spec.script is None}
        try:
            episodes = self._play(port, seed)
            weights = [use.weight for use in stage.rewards]
            roles = score_roles(
                self.rewards, weights, self.problems, episodes, list(speaking), self.account, self.shown
            )
            score_PN = average_roles(roles, [role for role, spec in speaking.items() if spec.policy == MAIN])
            refuse_no_scores(port, stage, self.problems, score_PN)
            samples = [[episode.summarise(MAIN) for episode in of_row] for of_row in episodes]
            return Evaluated(samples, score_PN, {}, roles=roles)
        finally:
            self.spending.report()

    def _play(self, port: str, seed: int) -> list[list[TeamEpisode]]:
        """Return the episodes of a team; those of an earlier attempt are in the journal."""
        stage, context = self.stage, self.context
        ports = {MAIN: port} | {name: find_port(name, port, stage) for name in stage.policies}
        policies = {
            name: load_sampling_policy(context.input(own), context.device, None, stage, stage.dtype)
            for name, own in ports.items()
        }
        played: Played = {name: (policy, make_engine(stage.engine, policy)) for name, policy in policies.items()}
        policy, engine = played[MAIN]
        assert stage.turn_order is not None
        speakers = make_speakers(stage.roles, played, context.inputs)
        sampler = ConversationSampler(
            engine,
            policy,
            Sampling(stage.temperature, stage.max_completion_length),
            seed,
            0,
            turn_order=bind(stage.turn_order, "turn_order", context.inputs),
            max_turns=stage.turn_order.max_turns,
            speakers=speakers,
        )
        self.started += 1
        try:
            with RowJournal(context.checkpoints / f"sampled-{self.started}.jsonl") as journal:
                recall_tokens(context, engine, journal.tokens)
                how = {"n": stage.num_generations, "seed": seed, "journal": journal, "on_progress": self._report}
                episodes = play_rows(sampler, self.problems, **how)
        finally:
            close_speakers(speakers.values())
        self.done += len(self.problems)
        return episodes


def find_port(policy: str, port: str, stage: Evaluate) -> str:
    """Return the input with a further policy of the team whose model is the input `port`."""
    team = port.partition(".")[2] or MAIN
    own = f"policies.{policy}.models.{team}"
    return own if team in stage.policies[policy].models else f"policies.{policy}.model"
