"""verl's configurations and command lines: PPO and its relatives, and fine-tuning."""

from schemas.base import JsonObject
from schemas.importers.common.draft import StageDraft
from schemas.importers.common.job import Job, Source, Tool, map_group, map_model, map_reporting, map_seed, put_sources
from schemas.importers.common.optimisation import Names, map_optimisation
from schemas.importers.common.references import refer
from schemas.importers.common.report import Status
from schemas.importers.common.rewards import BUILT_IN, find_function_in_file
from schemas.importers.common.rollouts import put_iterations, put_rollouts
from schemas.importers.common.values import flag, mapping, number, whole
from schemas.importers.known_keys.verl import KEYS
from schemas.importers.tools.verl_keys import HARMLESS, UNSUPPORTED
from schemas.importers.tools.verl_sft import convert_sft, map_lora
from schemas.importers.tools.verl_shaping import map_shaping, pass_over_reward_model
from schemas.source.foreign_keys import SPEED

A, R, M = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
OPTIM = f"{A}optim."
ALGORITHMS = {
    "gae": "ppo",
    "grpo": "grpo",
    "rloo": "rloo",
    "remax": "remax",
    "opo": "opo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "gpg": "gpg",
    "optimal_token_baseline": "optimal_token_baseline",
}
AGGREGATIONS: JsonObject = {
    "token-mean": "token_mean",
    "seq-mean-token-sum": {"use": "constant", "length": 1},
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum-norm": "constant",
}
ESTIMATORS = {"low_var_kl": "k3", "k3": "k3", "mse": "k2", "k2": "k2", "kl": "k2", "k1": "k2"}
ESTIMATORS |= {f"{word}+": "k2" for word in (*ESTIMATORS, "abs")}
"""Estimators of the KL term; one with `+` has the gradient of k2."""
WITHOUT_GRADIENT = ("kl", "k1")
"""Estimators whose gradient has the mean 0; the recipe has k2 in place of them."""
CLIPPED = ("ppo", "grpo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "optimal_token_baseline")
"""Presets with PPO's clip."""
NAMES = Names(
    learning_rate=f"{OPTIM}lr",
    optim=f"{OPTIM}optimizer",
    schedule=f"{OPTIM}lr_scheduler_type",
    schedule_options=f"{OPTIM}lr_scheduler_kwargs",
    warmup_ratio=f"{OPTIM}lr_warmup_steps_ratio",
    warmup_steps=f"{OPTIM}lr_warmup_steps",
    weight_decay=f"{OPTIM}weight_decay",
    beta1=f"{OPTIM}betas.0",
    beta2=f"{OPTIM}betas.1",
    epsilon=f"{OPTIM}eps",
    grad_norm=f"{A}grad_clip",
    rate=1e-6,
    decay=0.01,
    shape="constant",
)


def convert(job: Job) -> None:
    """Write the recipe of a configuration."""
    if job.leaves.has("actor_rollout_ref"):
        _convert_rl(job)
    else:
        convert_sft(job)


def _convert_rl(job: Job) -> None:
    leaves = job.leaves
    estimator = str(leaves.get("algorithm.adv_estimator", "gae"))
    algorithm = ALGORITHMS.get(estimator)
    if algorithm is None:
        advice = f"there are {', '.join(ALGORITHMS)}; docs/rl.md shows how others are composed"
        raise job.fail("algorithm.adv_estimator", f"estimator {estimator} has no counterpart", advice)
    stage = job.draft.stage("ppo" if algorithm == "ppo" else "rl", "rl")
    stage.put("algorithm", algorithm, "algorithm.adv_estimator")
    leaves.account("algorithm.adv_estimator", "mapped", f"{stage.name}.algorithm: {algorithm}")
    map_model(job, stage, f"{M}path")
    _map_prompts(job, stage)
    stage.put("rewards", [_map_reward(job)], "custom_reward_function, reward_model")
    _map_betas(stage)
    if leaves.has(f"{OPTIM}warmup_style") and not leaves.has(NAMES.schedule):
        stage.copy(f"{OPTIM}warmup_style", "lr_scheduler_type", str)
    _map_rates(stage)
    options = "data.apply_chat_template_kwargs"
    if leaves.get(options):
        stage.put("chat_template_kwargs", mapping(leaves.get(options)), options)
        leaves.mapped(options, f"{stage.name}.chat_template_kwargs")
    stage.copy("data.max_response_length", "max_completion_length", whole, 512)
    leaves.harmless(f"{R}response_length", "data.max_response_length says it")
    leaves.unsupported("data.max_prompt_length", "prompts are never cut; drop long ones in a curate stage")
    leaves.harmless(f"{R}prompt_length", "prompts are never cut")
    stage.copy(f"{R}temperature", "temperature", number)
    _map_sampling(stage)
    _map_loss(stage, algorithm)
    _map_kl(stage)
    map_shaping(stage)
    if algorithm == "ppo":
        _map_critic(job, stage)
    else:
        leaves.harmless("critic", "this algorithm has no critic")
        leaves.harmless("trainer.critic_warmup", "this algorithm has no critic")
    _map_batches(job, stage)
    _map_evaluation(job, stage)
    map_reporting(stage, {"save": "trainer.save_freq", "recompute": f"{M}enable_gradient_checkpointing"})
    map_lora(stage, M, f"{M}lora_rank")
    sharding = tuple(f"{part}fsdp_config" for part in (A, "actor_rollout_ref.ref."))
    dtype = leaves.get(f"{A}fsdp_config.model_dtype", "fp32")
    if str(dtype) in ("bf16", "bfloat16"):
        stage.put("dtype", "bfloat16", f"{A}fsdp_config.model_dtype")
        leaves.mapped(f"{A}fsdp_config.model_dtype", f"{stage.name}.dtype")
    elif "dtype" not in stage.lines:
        stage.put("bf16", True, f"{A}fsdp_config.dtype")
    map_group(job, stage, sharding, ())
    map_seed(job, "data.seed", None)


def _map_betas(stage: StageDraft) -> None:
    """Take over the moments of AdamW, which are a list."""
    betas = stage.leaves.get(f"{OPTIM}betas")
    if isinstance(betas, list) and len(betas) == 2:
        for ours, value in zip(("adam_beta1", "adam_beta2"), betas, strict=True):
            stage.put(ours, number(value), f"{OPTIM}betas")
        stage.leaves.mapped(f"{OPTIM}betas", f"{stage.name}.adam_beta1, adam_beta2")


def _map_rates(stage: StageDraft) -> None:
    leaves = stage.leaves
    map_optimisation(stage, NAMES)
    leaves.account(f"{OPTIM}clip_grad", "harmless", f"{A}grad_clip says it")
    ratio = leaves.get(f"{OPTIM}min_lr_ratio")
    if ratio and stage.get("lr_scheduler_type") == "cosine":
        stage.copy(f"{OPTIM}min_lr_ratio", "min_lr_ratio", number)
        stage.put("lr_scheduler_type", "cosine_with_min_lr", f"{OPTIM}min_lr_ratio")
    leaves.unsupported(f"{OPTIM}min_lr_ratio", "of a cosine only")
    for key in ("total_training_steps", "num_cycles", "warmup_style", "optimizer_impl"):
        leaves.harmless(f"{OPTIM}{key}", "follows from the steps of the stage")


def _map_prompts(job: Job, stage: StageDraft) -> None:
    put_sources(stage, "prompts", _make_sources(job, stage, "data.train_files"), "data.train_files")


def _make_sources(job: Job, stage: StageDraft, key: str) -> list[Source]:
    """Return the sources of prompts with verl's columns. Raise RecipeError if the input names none."""
    leaves, files = job.leaves, job.leaves.get(key)
    listed = files if isinstance(files, list) else [] if files is None else [files]
    if not listed:
        raise job.fail(key, "the configuration names no data", f"add `{key}: train.parquet`")
    column = str(leaves.get("data.prompt_key", "prompt"))
    columns = {"answer": "{reward_model.ground_truth}"}
    columns |= {} if column == "prompt" else {"prompt": column}
    sources: list[Source] = []
    for file in listed:
        try:
            sources.append({"from": refer(file, job.places), "format": "prompts", "columns": dict(columns)})
        except ValueError as error:
            leaves.account(key, "not supported", str(error))
    limit = leaves.get("data.train_max_samples")
    if limit not in (None, -1) and key == "data.train_files":
        for source in sources:
            source["max_rows"] = whole(limit)
        leaves.mapped("data.train_max_samples", f"{stage.name}.prompts.max_rows")
    leaves.account(key, "mapped", f"{stage.name}.prompts: {', '.join(source['from'] for source in sources)}")
    leaves.account("data.prompt_key", "mapped", f"{stage.name}.prompts.columns.prompt")
    if not sources:
        raise job.fail(key, "no file can be read", "fetch the files and name them")
    return sources


def _map_reward(job: Job) -> JsonObject:
    """Return the reward: the user's function, a reward model, or verl's own for the data."""
    leaves, at = job.leaves, "custom_reward_function"
    if leaves.has(f"{at}.path"):
        name = str(leaves.get(f"{at}.name", "compute_score"))
        reward, note = find_function_in_file(job, str(leaves.get(f"{at}.path")), name, "verl")
        for key in ("path", "name"):
            leaves.account(f"{at}.{key}", "mapped" if reward else "not supported", f"rewards: {note}")
        options = leaves.get(f"{at}.reward_kwargs")
        if reward and isinstance(options, dict) and options:
            reward["kwargs"] = options
            leaves.mapped(f"{at}.reward_kwargs", "rewards.kwargs")
        pass_over_reward_model(leaves, "the function scores")
        return reward or {"use": "answers.exact"}
    if leaves.get("reward_model.enable") and leaves.has("reward_model.model.path"):
        reference = refer(leaves.get("reward_model.model.path"), job.places)
        for key in ("enable", "model.path"):
            leaves.account(f"reward_model.{key}", "mapped", f"rewards: models.learned, {reference}")
        pass_over_reward_model(leaves, SPEED)
        return {"use": "models.learned", "model": reference}
    files = str(leaves.get("data.train_files", "")).lower()
    word = "gsm8k" if "gsm8k" in files else "math"
    reward, note = BUILT_IN[word]
    ours = f"{reward['use']} ({note})"
    leaves.state_default("custom_reward_function", "verl's function for the column data_source", ours)
    for key in ("reward_model.reward_manager", "data.reward_fn_key", "reward_manager.name"):
        leaves.account(key, "default differs", f"theirs {leaves.get(key)}; ours {ours}")
    pass_over_reward_model(leaves, "no reward model")
    return dict(reward)


def _map_sampling(stage: StageDraft) -> None:
    leaves = stage.leaves
    for key, neutral in (("top_k", (-1, 0)), ("top_p", (1, 1.0)), ("do_sample", (True,))):
        value = leaves.get(f"{R}{key}")
        advice = "sampling is by temperature alone, so that the loss sees what was sampled; leave it out"
        if value is None or value in neutral:
            leaves.harmless(f"{R}{key}", "does nothing at this value")
        leaves.account(f"{R}{key}", "not supported", advice)
    if leaves.get(f"{R}multi_turn.enable"):
        leaves.account(f"{R}multi_turn", "not supported", "write `env:` as docs/turns.md shows")
    leaves.harmless(f"{R}multi_turn", "is off")


def _map_loss(stage: StageDraft, algorithm: str) -> None:
    """Map clipping, the weights of tokens, and the normalisation of advantages."""
    leaves = stage.leaves
    low, high = leaves.get(f"{A}clip_ratio_low"), leaves.get(f"{A}clip_ratio_high")
    epsilon = number(low if low is not None else leaves.get(f"{A}clip_ratio", 0.2))
    loss: JsonObject = {"use": "clipped", "epsilon": epsilon}
    if high is not None and number(high) != epsilon:
        loss["epsilon_high"] = number(high)
    loss["delta"] = number(leaves.get(f"{A}clip_ratio_c", 3.0))
    mode = str(leaves.get(f"{A}policy_loss.loss_mode", "vanilla"))
    modes = {"gspo": ("ratio", "sequence_token"), "geo_mean": ("algorithm", "gmpo"), "gpg": ("algorithm", "gpg")}
    leaves.account(
        f"{A}policy_loss.loss_mode",
        "mapped" if mode in ("vanilla", "gspo") else "not supported",
        "the clipped loss" if mode == "vanilla" else f"see the presets in docs/recipes.md for {mode}",
    )
    if mode == "gspo":
        stage.put(*modes["gspo"], f"{A}policy_loss.loss_mode")
    if algorithm in CLIPPED:
        stage.put("policy_loss", loss, f"{A}clip_ratio")
        for key in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"):
            leaves.account(f"{A}{key}", "mapped", f"{stage.name}.policy_loss")
    for key in ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"):
        leaves.harmless(f"{A}{key}", f"the preset {algorithm} clips nothing")
    aggregation = str(leaves.get(f"{A}loss_agg_mode", "token-mean"))
    if aggregation in AGGREGATIONS and algorithm not in ("rloo", "remax"):
        stage.put("loss_aggregation", AGGREGATIONS[aggregation], f"{A}loss_agg_mode: {aggregation}")
    status = "mapped" if aggregation in AGGREGATIONS else "not supported"
    leaves.account(f"{A}loss_agg_mode", status, f"{stage.name}.loss_aggregation")
    if algorithm == "grpo" and leaves.get("algorithm.norm_adv_by_std_in_grpo") is False:
        stage.put("advantage", [{"use": "center", "by": "group"}], "algorithm.norm_adv_by_std_in_grpo")
    leaves.account("algorithm.norm_adv_by_std_in_grpo", "mapped", f"{stage.name}.advantage")
    if algorithm != "ppo":
        for key in ("gamma", "lam"):
            leaves.harmless(f"algorithm.{key}", "of estimators with a critic or returns")


def _map_kl(stage: StageDraft) -> None:
    leaves = stage.leaves
    terms: list[JsonObject] = []
    if leaves.get(f"{A}use_kl_loss"):
        word = str(leaves.get(f"{A}kl_loss_type", "low_var_kl"))
        coef = number(leaves.get(f"{A}kl_loss_coef", 0.001))
        terms.append({"use": "kl", "estimator": ESTIMATORS.get(word, "k3"), "coef": coef})
        status: Status = "default differs" if word in WITHOUT_GRADIENT else "mapped"
        status = status if word in ESTIMATORS else "not supported"
        leaves.account(
            f"{A}kl_loss_type", status, f"{stage.name}.loss_terms.kl.estimator: {ESTIMATORS.get(word, 'k3')}"
        )
        for key in ("use_kl_loss", "kl_loss_coef"):
            leaves.account(f"{A}{key}", "mapped", f"{stage.name}.loss_terms.kl")
    for key in ("use_kl_loss", "kl_loss_coef", "kl_loss_type"):
        leaves.harmless(f"{A}{key}", "there is no KL term in the loss")
    if coef := number(leaves.get(f"{A}entropy_coeff", 0)):
        terms.append({"use": "entropy", "coef": coef})
    leaves.account(f"{A}entropy_coeff", "mapped", f"{stage.name}.loss_terms.entropy.coef")
    stage.put("loss_terms", terms, f"{A}use_kl_loss, {A}entropy_coeff")
    if leaves.get("algorithm.use_kl_in_reward"):
        beta = number(leaves.get("algorithm.kl_ctrl.kl_coef", 0.001))
        stage.put("reward_shaping", [{"use": "kl_in_reward", "beta": beta}], "algorithm.kl_ctrl.kl_coef")
        for key in ("use_kl_in_reward", "kl_ctrl.kl_coef"):
            leaves.account(f"algorithm.{key}", "mapped", f"{stage.name}.reward_shaping.kl_in_reward")
        if leaves.get("algorithm.kl_ctrl.type") == "adaptive":
            advice = "write a controller for the number (docs/rl.md)"
            leaves.account("algorithm.kl_ctrl.type", "not supported", advice)
    for key in ("use_kl_in_reward", "kl_ctrl", "kl_penalty"):
        leaves.harmless(f"algorithm.{key}", "of a KL penalty in the reward")


def _map_critic(job: Job, stage: StageDraft) -> None:
    leaves = job.leaves
    critic: JsonObject = {"learning_rate": number(leaves.get("critic.optim.lr", 1e-5))}
    path = leaves.get("critic.model.path")
    if path is not None and path != leaves.get(f"{M}path"):
        critic["model"] = refer(path, job.places)
    critic["loss"] = {"use": "squared", "clip": number(leaves.get("critic.cliprange_value", 0.5))}
    warmup = whole(leaves.get("trainer.critic_warmup", 0))
    if warmup:
        critic["warmup_steps"] = warmup
    stage.put("critic", critic, "critic")
    advantage = [
        {
            "use": "gae",
            "gamma": number(leaves.get("algorithm.gamma", 1.0)),
            "lam": number(leaves.get("algorithm.lam", 1.0)),
        },
        {"use": "center", "by": "batch"},
        {"use": "scale", "by": "batch", "stat": "std", "epsilon": 1e-8},
    ]
    stage.put("advantage", advantage, "algorithm.gamma, algorithm.lam")
    for key in ("critic.optim.lr", "critic.model.path", "critic.cliprange_value", "trainer.critic_warmup"):
        leaves.account(key, "mapped", f"{stage.name}.critic")
    for key in ("algorithm.gamma", "algorithm.lam"):
        leaves.account(key, "mapped", f"{stage.name}.advantage.gae")
    for leaf in leaves.leaves_of("critic"):
        word = leaf.rpartition(".")[2]
        if word in ("weight_decay", "lr_warmup_steps_ratio", "lr_warmup_steps", "grad_clip", "ppo_epochs", "betas"):
            leaves.account(leaf, "not supported", "the critic takes the stage's decay, warm-up, clipping and passes")
    leaves.harmless("critic", SPEED)


def _map_batches(job: Job, stage: StageDraft) -> None:
    leaves = job.leaves
    prompts, group = whole(leaves.get("data.train_batch_size", 1024)), whole(leaves.get(f"{R}n", 1))
    mini = min(prompts, whole(leaves.get(f"{A}ppo_mini_batch_size", 256)))
    if group == 1 and stage.get("algorithm") in ("grpo", "rloo"):
        own_reward = [{"use": "broadcast_to_tokens"}]
        stage.put("advantage", own_reward, f"{R}n: the advantage of a group of one completion is its reward")
    put_rollouts(stage, prompts * group, group, mini * group, "data.train_batch_size × rollout.n")
    stage.copy(f"{A}ppo_epochs", "num_iterations", whole)
    note = f"{prompts} prompts × {group} completions, {mini} prompts per optimiser step"
    for key in ("data.train_batch_size", f"{R}n", f"{A}ppo_mini_batch_size"):
        leaves.account(key, "mapped", f"{stage.name}.generation_batch_size: {note}")
    given = leaves.get("trainer.total_training_steps")
    steps = None if given is None else whole(given)
    epochs = number(leaves.get("trainer.total_epochs", 30))
    put_iterations(job, stage, steps, epochs, "trainer.total_training_steps", "trainer.total_epochs", 1)


def _map_evaluation(job: Job, stage: StageDraft) -> None:
    """Map the validation files, which are evaluated in training."""
    leaves = job.leaves
    every = whole(leaves.get("trainer.test_freq", -1))
    if leaves.has("data.val_files") and 0 < every <= int(stage.get("max_steps", 1)):
        put_sources(stage, "eval_prompts", _make_sources(job, stage, "data.val_files"), "data.val_files")
        stage.put("eval_steps", every, "trainer.test_freq")
        leaves.entries.pop("data.val_files", None)
        leaves.mapped("data.val_files", f"{stage.name}.eval_prompts")
        leaves.account("trainer.test_freq", "mapped", f"{stage.name}.eval_steps")
        _map_eval_sampling(stage)
    why = "`eval_prompts` with `eval_steps` evaluates in training; here trainer.test_freq never comes"
    for key in ("data.val_files", "trainer.test_freq"):
        leaves.harmless(key, why)
    leaves.harmless(
        f"{R}val_kwargs", "one completion per prompt, at eval_temperature" if "eval_steps" in stage.lines else why
    )
    for key in ("data.val_batch_size", "data.val_max_samples", "data.validation_shuffle", "trainer.val_before_train"):
        leaves.harmless(key, SPEED)


def _map_eval_sampling(stage: StageDraft) -> None:
    """Map how completions of the validation files are drawn; without `do_sample`, verl takes the likeliest tokens."""
    leaves, at = stage.leaves, f"{R}val_kwargs"
    draws = flag(leaves.get(f"{at}.do_sample", False))
    temperature = number(leaves.get(f"{at}.temperature", 0)) if draws else 0.0
    stage.put("eval_temperature", temperature, f"{at}.temperature" if draws else f"{at}.do_sample")
    for key in ("do_sample", "temperature"):
        leaves.account(f"{at}.{key}", "mapped", f"{stage.name}.eval_temperature: {temperature:g}")
    count = whole(leaves.get(f"{at}.n", 1))
    if draws and count > 1:
        advice = f"theirs {count} completions per prompt; ours one; a stage of kind evaluate takes `num_generations`"
        leaves.account(f"{at}.n", "default differs", advice)
    for key, off in (("top_p", 1.0), ("top_k", -1.0)):
        if draws and temperature and leaves.has(f"{at}.{key}") and number(leaves.get(f"{at}.{key}")) != off:
            leaves.account(f"{at}.{key}", "not supported", "evaluations draw by temperature alone")


TOOL = Tool(
    "verl",
    "verl",
    KEYS,
    (
        "actor_rollout_ref",
        "data.train_files",
        "trainer.total_epochs",
        "model.partial_pretrain",
        "algorithm.adv_estimator",
    ),
    convert,
    ("verl.trainer.main_ppo", "verl.trainer.fsdp_sft_trainer", "verl.trainer.sft_trainer", "verl"),
    HARMLESS,
    UNSUPPORTED,
)
"""The tool."""
