"""Growth: which spheres come, go and move, and what that does to the picture."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrec.cli.main import main
from jaxrec.rendering import render
from jaxrec.scene import Spheres
from jaxrec.sensors import Frame, OrthographicCamera, PinholeCamera, look_at
from jaxrec.shading import PlainColor
from jaxrec.train import (
    MCMC,
    Densification,
    FitSettings,
    FitState,
    FrameOrder,
    NoGrowth,
    Relocation,
    SphereModel,
    grow,
    growth_due,
    make_step,
    plan_clone,
    plan_mcmc,
    plan_prune,
    plan_relocation,
    plan_split,
    share_opacity,
    share_radius,
    stack_frames,
    start,
)
from jaxrec.train.density import agitate
from jaxrec.train.optimizer import decayed, second_moments

POSE = look_at(np.float32([0, 0, -2]), np.zeros(3, np.float32), np.float32([0, 1, 0]))
# Parallel rays, so that a sphere's disc is a disc in the image.
FLAT = OrthographicCamera(POSE, np.float32(1 / 40), width=48, height=48)
CAMERA = PinholeCamera(
    POSE,
    focal=np.full(2, 80, np.float32),
    principal=np.full(2, 24, np.float32),
    width=48,
    height=48,
)
RULES = {
    "relocation": Relocation(every=3, start=0.0, stop=1.0, draw="gradient"),
    "mcmc": MCMC(every=3, start=0.0, stop=1.0),
    "densification": Densification(every=3, start=0.0, stop=1.0),
    "none": NoGrowth(),
}


def alpha_of(opacities, radii, centers=None):
    count = len(opacities)
    centers = jnp.zeros((count, 3)) if centers is None else centers
    spheres = Spheres(centers, radii, opacities, jnp.zeros((count, 1)), alive=jnp.ones(count, bool))
    return np.asarray(render(spheres, FLAT, near=0.1, far=10.0).alpha)


def some_state(rule, opacities, alive, key, features=None):
    count = len(opacities)
    keys = jax.random.split(key, 2)
    if features is None:
        features = jnp.arange(count, dtype=jnp.float32)[:, None] * jnp.ones((1, 3))
    spheres = Spheres(
        jax.random.uniform(keys[0], (count, 3), minval=-0.4, maxval=0.4),
        jax.random.uniform(keys[1], (count,), minval=0.05, maxval=0.15),
        jnp.asarray(opacities),
        features,
        jnp.asarray(alive),
    )
    settings = FitSettings(spheres=count, shader="plain", growth=rule, horizon=100)
    return FitState.create(SphereModel(spheres, PlainColor()), settings), settings


# ---- rules as settings


@pytest.mark.parametrize("name", RULES)
def test_rules_survive_json_with_their_name(name):
    settings = FitSettings(growth=RULES[name])
    values = json.loads(json.dumps(settings.to_dict()))
    assert values["growth"]["rule"] == name
    assert FitSettings.from_dict(values) == settings


def test_settings_from_before_there_were_rules_are_read():
    values = FitSettings().to_dict()
    del values["growth"]
    rule = Relocation(every=7, share=0.5)
    found = FitSettings.from_dict({**values, "relocation": dataclasses.asdict(rule)})
    assert found == FitSettings(growth=rule)


def test_rules_out_of_range_are_named(own_errors):
    with pytest.raises(ValueError, match=r"growth\.share: got 0\.0"):
        Relocation(share=0.0)
    with pytest.raises(ValueError, match=r"growth\.growth: got 2"):
        MCMC(growth=2.0)
    with pytest.raises(ValueError, match=r"growth\.radius: got 0"):
        Densification(radius=0.0)
    with pytest.raises(ValueError, match=r"growth\.rule: got magic, want one of"):
        FitSettings.from_dict({"growth": {"rule": "magic"}})
    with pytest.raises(ValueError, match=r"unknown growth\.speed"):
        FitSettings.from_dict({"growth": {"rule": "mcmc", "speed": 1}})


@pytest.mark.parametrize(
    "typed, rule",
    [
        ([], Relocation()),
        (["growth:mcmc", "--growth.every", "7"], MCMC(every=7)),
        (["growth:densification"], Densification()),
        (["growth:no-growth"], NoGrowth()),
    ],
)
def test_a_rule_is_chosen_on_the_command_line(typed, rule, monkeypatch, tmp_path):
    asked = []

    def note(*_, settings, **__):
        asked.append(settings.growth)
        raise ValueError("enough")

    monkeypatch.setattr("jaxrec.cli.fit.make_config", note)
    assert main(["fit", str(tmp_path), "--out", str(tmp_path / "run"), *typed]) == 2
    assert asked == [rule]


def test_no_growth_is_never_due():
    assert not any(growth_due(FitSettings(growth=NoGrowth()), done) for done in range(300))
    assert growth_due(FitSettings(growth=MCMC(every=10), horizon=200), 100)


# ---- what copies look like


@pytest.mark.parametrize("copies", [2, 3, 10, 60])
@pytest.mark.parametrize("opacity", [0.01, 0.5, 0.95, 1.0])
def test_copies_at_one_place_cover_as_much_as_one_sphere(copies, opacity):
    count = jnp.full(copies, copies)
    opacities = jnp.full(copies, opacity)
    factor = share_radius(opacities, count)
    assert 0 < factor[0] < 1
    one = alpha_of(opacities[:1], jnp.full(1, 0.5))
    many = alpha_of(jax.nn.sigmoid(share_opacity(opacities, count)), 0.5 * factor)
    # Sums over 1256 pixels of a smooth disc: what is lost at the rim is won within it.
    np.testing.assert_allclose(many.sum(), one.sum(), rtol=1e-3)
    # Many copies of an opaque sphere are a plate: no size makes them a bump.
    assert np.abs(many - one).max() < (0.25 if opacity < 1 else 0.4)
    unscaled = alpha_of(jax.nn.sigmoid(share_opacity(opacities, count)), jnp.full(copies, 0.5))
    assert np.abs(many - one).mean() < np.abs(unscaled - one).mean()


def test_a_sphere_alone_stays_as_it_is():
    opacities, one = jnp.linspace(0, 1, 9), jnp.ones(9, jnp.int32)
    np.testing.assert_array_equal(share_radius(opacities, one), np.ones(9))
    kept = jax.nn.sigmoid(share_opacity(opacities, one))
    np.testing.assert_allclose(kept, opacities, atol=2e-6)


# ---- plans


def test_mcmc_moves_the_transparent_and_adds_a_share(key):
    opacities = jnp.where(jnp.arange(100) < 40, 0.5, 0.001)
    alive = jnp.arange(100) < 60
    edit = jax.jit(plan_mcmc, static_argnums=2)(opacities, alive, MCMC(growth=0.1), key)
    np.testing.assert_array_equal(np.flatnonzero(edit.fresh), np.arange(40, 66))
    assert (np.asarray(edit.source)[40:66] < 40).all()
    np.testing.assert_array_equal(
        np.delete(edit.source, np.arange(40, 66)), [*range(40), *range(66, 100)]
    )
    np.testing.assert_array_equal(edit.alive, np.arange(100) < 66)


@pytest.mark.parametrize("dead", ["all", "none", "transparent"])
def test_mcmc_has_an_answer_when_nothing_or_everything_is_there(dead, key):
    opacities = jnp.full(20, 0.001 if dead == "transparent" else 0.5)
    alive = jnp.full(20, dead != "all")
    edit = plan_mcmc(opacities, alive, MCMC(growth=0.5), key)
    assert not edit.fresh.any()
    np.testing.assert_array_equal(edit.source, np.arange(20))
    np.testing.assert_array_equal(edit.alive, alive)


def test_opaque_spheres_are_copied_in_proportion(key):
    opacities = jnp.where(jnp.arange(4000) < 2, jnp.asarray([0.2, 0.8] * 2000), 0.0)
    edit = plan_mcmc(opacities, jnp.ones(4000, bool), MCMC(), key)
    share = np.mean(np.asarray(edit.source)[2:] == 1)
    # Three deviations of a binomial of 4000 draws.
    assert abs(share - 0.8) < 3 * np.sqrt(0.8 * 0.2 / 4000)


def test_relocation_draws_in_proportion_to_what_it_is_told(key):
    opacities = jnp.where(jnp.arange(2000) < 3, 0.9, 0.1)
    scores = jnp.zeros(2000).at[1].set(1e-9)
    rule = Relocation(opacity=0.5, share=1.0, draw="gradient")
    edit = plan_relocation(opacities, jnp.ones(2000, bool), rule, key, scores)
    np.testing.assert_array_equal(edit.source[3:], np.ones(1997))
    # Before anything has moved, nothing is known: nothing is relocated.
    none = plan_relocation(opacities, jnp.ones(2000, bool), rule, key, jnp.zeros(2000))
    assert not none.fresh.any()


def test_clones_go_to_free_rows_by_score():
    alive = jnp.asarray([True, True, False, True, False, True])
    wanted = jnp.asarray([True, False, True, True, False, True])
    scores = jnp.asarray([1.0, 9, 9, 3, 0, 2])
    edit = jax.jit(plan_clone)(wanted, scores, alive)
    # Row 2 is wanted but dead; of the others the two best find room.
    np.testing.assert_array_equal(edit.source, [0, 1, 3, 3, 5, 5])
    np.testing.assert_array_equal(edit.fresh, [False, False, True, False, True, False])
    assert edit.alive.all()
    halves = plan_split(wanted, scores, alive)
    np.testing.assert_array_equal(halves.source, edit.source)
    np.testing.assert_array_equal(halves.fresh, [False, False, True, True, True, True])


@pytest.mark.parametrize("plan", [plan_clone, plan_split])
@pytest.mark.parametrize("case", ["all dead", "full", "none wanted"])
def test_nothing_is_copied_where_there_is_nothing_or_no_room(plan, case):
    alive = jnp.asarray({"all dead": [False] * 4, "full": [True] * 4}.get(case, [True, False] * 2))
    edit = plan(jnp.full(4, case != "none wanted"), jnp.arange(4.0), alive)
    np.testing.assert_array_equal(edit.source, np.arange(4))
    assert not edit.fresh.any()
    np.testing.assert_array_equal(edit.alive, alive)


def test_pruned_spheres_leave_free_rows():
    alive = jnp.asarray([True, True, False])
    edit = plan_prune(jnp.asarray([True, False, True]), alive)
    np.testing.assert_array_equal(edit.alive, [False, True, False])
    assert not edit.fresh.any()
    everything = plan_prune(jnp.ones(3, bool), alive)
    assert not everything.alive.any()


# ---- rules at work


def test_mcmc_does_not_change_the_picture(key):
    count = 60
    opacities = jnp.where(jnp.arange(count) < 20, jnp.linspace(0.3, 0.95, count), 0.001)
    before, settings = some_state(MCMC(), opacities, jnp.arange(count) < 50, key)

    @jax.jit
    def alpha(state):
        return render(state.model(settings).spheres(), CAMERA, near=0.1, far=10.0).alpha

    first, shown = alpha(before), int(before.alive.sum())
    after = grow(before, settings)
    assert int(after.alive.sum()) == shown + np.ceil(0.05 * 50)
    # What vanishes are 30 spheres of opacity 0.001.
    assert np.abs(alpha(after) - first).mean() < 0.01
    assert np.abs(alpha(after) - first).max() < 0.2


@pytest.mark.parametrize("rule", [RULES["mcmc"], Relocation(), RULES["densification"]])
@pytest.mark.parametrize("alive", [0, 1, 30])
def test_every_rule_survives_no_spheres_one_and_full_capacity(rule, alive, key):
    opacities = jnp.full(30, 0.7)
    before, settings = some_state(rule, opacities, jnp.arange(30) < alive, key)
    params = jax.tree.map(np.asarray, before.params)
    after = grow(before, settings)
    for leaf in jax.tree.leaves((after.params, after.optimizer)):
        assert np.all(np.isfinite(leaf))
    assert int(after.alive.sum()) >= alive
    if alive != 1:
        # Nothing to copy, or no room: nothing changes.
        jax.tree.map(np.testing.assert_array_equal, after.params, params)


def test_densification_copies_what_moves_most_and_prunes(key):
    rule = Densification(share=0.25, radius=0.1)
    opacities = jnp.where(jnp.arange(12) < 8, 0.7, 0.001)
    before, settings = some_state(rule, opacities, jnp.ones(12, bool), key)
    state = before.optimizer
    moments = second_moments(state, "centers").at[jnp.asarray([2, 5])].set(1.0)
    inner = state.inner_states["centers"]
    adam = inner.inner_state[0]._replace(nu={**inner.inner_state[0].nu, "centers": moments})
    inner = inner._replace(inner_state=(adam, *inner.inner_state[1:]))
    state = state._replace(inner_states={**state.inner_states, "centers": inner})
    sizes = jnp.full(12, 0.05).at[2].set(0.3)
    params = {**before.params, "log_radii": jnp.log(sizes)}
    after = grow(dataclasses.replace(before, params=params, optimizer=state), settings)
    # A quarter of eight are two; four rows were free.
    rows = np.asarray(after.params["features"])[:, 0]
    np.testing.assert_array_equal(
        np.sort(rows[np.asarray(after.alive)]), [0, 1, 2, 2, 3, 4, 5, 5, 6, 7]
    )
    radii = np.exp(np.asarray(after.params["log_radii"]))
    np.testing.assert_allclose(radii[rows == 2][:2], 0.3 / 1.6, rtol=1e-5)
    clones = radii[(rows == 5) & np.asarray(after.alive)]
    assert np.all(clones < 0.05) and np.all(clones > 0.04)
    kept = np.asarray(second_moments(after.optimizer, "centers"))[:, 0]
    # The first clone keeps its moments, both halves of the split sphere start anew.
    assert sorted(kept[np.asarray(after.alive)])[-2:] == [0.0, 1.0]


def test_noise_moves_only_what_is_transparent(key):
    opacities = jnp.asarray([0.0005, 0.2, 0.9])
    state, settings = some_state(MCMC(noise=0.5), opacities, jnp.ones(3, bool), key)
    moved = {}
    for step in (0, 100):
        keys = jax.random.split(jax.random.key(1), 300)
        left = decayed(settings.rates.centers_final, settings.horizon)(step)
        many = jax.vmap(
            lambda k, left=left: agitate(state.params, settings.growth, left, k)["centers"]
        )
        offsets = np.asarray(many(keys) - state.params["centers"][None])
        moved[step] = offsets.std(axis=(0, 2)) / np.exp(np.asarray(state.params["log_radii"]))
    gate = 1 / (1 + np.exp(-100 * (0.005 - 0.0005)))
    assert moved[0][0] == pytest.approx(0.5 * gate, rel=0.1)
    assert moved[0][1] < 1e-6 and moved[0][2] == 0
    assert moved[100][0] == pytest.approx(0.5 * gate * settings.rates.centers_final, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mcmc", "densification"])
def test_growing_does_not_compile_again(name, key):
    frames = [Frame(CAMERA, np.full((48, 48, 3), 0.2, np.float32)) for _ in range(2)]
    settings = FitSettings(
        steps=20, horizon=20, spheres=50, first_share=0.4, shader="plain", growth=RULES[name],
        initialization="random",
    )  # fmt: skip
    state, normalizer = start(frames, settings)
    [stack] = stack_frames(frames, normalizer)
    order, step = FrameOrder([2], 1, 0), make_step(settings, normalizer)
    compiled, counts = [], [int(state.alive.sum())]

    def listen(event, duration, **_):
        if "backend_compile" in event:
            compiled.append(event)

    def go(steps):
        nonlocal state
        for done in steps:
            state, _ = step(state, stack, order.at(done)[1])
            if growth_due(settings, done + 1):
                state = grow(state, settings)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        go(range(6))
        assert compiled
        compiled.clear()
        go(range(6, 18))
    finally:
        jax.monitoring.clear_event_listeners()
    assert not compiled
    counts.append(int(state.alive.sum()))
    assert counts[0] == 20 < counts[1] <= 50
