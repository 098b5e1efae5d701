"""The model families that were tested (`lastword models`).

For other decoder-only models of transformers, the check at load decides.
"""

from dataclasses import dataclass

ALL = ("fp8", "int8", "nf4")
LOADING = ("int8", "nf4")


@dataclass(frozen=True)
class Family:
    """A model type, with properties that tests check on small random checkpoints on the CPU.

    Attributes:
        model_type: `config.model_type` in transformers.
        head: transformers' class, whose forward computes the logits.
        road: `packed` if the check at load takes the packed forest, else `plain`.
        rule: Operations of that class besides the norm and the head's weights.
        wrapper: Model type of the multimodal wrapper with this text model, if any.
        tried: Quantisations that were compared with dense weights: `fp8` and `mxfp4` as stored,
            `int8` and `nf4` by `--load quantize`.
        note: Special properties of its positions or attention.
    """

    model_type: str
    head: str
    road: str = "packed"
    rule: str = ""
    wrapper: str | None = None
    tried: tuple[str, ...] = ALL
    note: str = ""


FAMILIES = (
    Family("bloom", "BloomForCausalLM", "plain", tried=LOADING, note="ALiBi positions"),
    Family("cohere", "CohereForCausalLM", rule="logits x logit_scale"),
    Family("deepseek_v2", "DeepseekV2ForCausalLM", tried=("fp8",), note="MLA"),
    Family("deepseek_v3", "DeepseekV3ForCausalLM", tried=("fp8",), note="MLA"),
    Family(
        "falcon",
        "FalconForCausalLM",
        tried=(),
        note="no attention interface: takes the forest as a 4-D mask",
    ),
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        rule="soft-capped logits",
        note="sliding window in every second block",
    ),
    Family(
        "gemma3_text",
        "Gemma3ForCausalLM",
        wrapper="gemma3",
        note="sliding window in five of six blocks",
    ),
    Family("glm4", "Glm4ForCausalLM"),
    Family("gpt2", "GPT2LMHeadModel", tried=LOADING, note="learned positions"),
    Family("gpt_neo", "GPTNeoForCausalLM", "plain", tried=LOADING, note="local attention"),
    Family("gpt_neox", "GPTNeoXForCausalLM"),
    Family(
        "gpt_oss",
        "GptOssForCausalLM",
        tried=("mxfp4", *LOADING),
        note="attention sinks, sliding window in every second block",
    ),
    Family("granite", "GraniteForCausalLM", rule="logits / logits_scaling"),
    Family("lfm2", "Lfm2ForCausalLM", "plain", note="convolutions: I(M) must be given"),
    Family(
        "llama", "LlamaForCausalLM", note="dynamic rope: a sequence past the context runs alone"
    ),
    Family(
        "llama4_text",
        "Llama4ForCausalLM",
        "plain",
        wrapper="llama4",
        tried=LOADING,
        note="chunked attention",
    ),
    Family("mamba", "MambaForCausalLM", "plain", tried=(), note="state space: I(M) must be given"),
    Family("ministral3", "Ministral3ForCausalLM", wrapper="mistral3"),
    Family(
        "mistral", "MistralForCausalLM", wrapper="mistral3", note="with and without sliding window"
    ),
    Family("mixtral", "MixtralForCausalLM"),
    Family("olmo2", "Olmo2ForCausalLM"),
    Family(
        "opt",
        "OPTForCausalLM",
        rule="project_out, where embeddings are narrower",
        note="learned positions",
    ),
    Family("phi", "PhiForCausalLM", rule="bias"),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        note="longrope: sequences on either side of the boundary run apart",
    ),
    Family("qwen2", "Qwen2ForCausalLM"),
    Family("qwen3", "Qwen3ForCausalLM"),
    Family("qwen3_moe", "Qwen3MoeForCausalLM"),
    Family("smollm3", "SmolLM3ForCausalLM"),
    Family("stablelm", "StableLmForCausalLM"),
)
