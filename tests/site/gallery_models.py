"""The models of the gallery: titles, and what there is to learn from each; the sentences are about the curves that are stored."""

from attrs import frozen


@frozen
class Piece:
    """A model of the gallery: its heading, what it is, and one line of what to learn from its curve."""

    title: str
    about: str
    lesson: str


GROUPS = {
    "language": "Language and sound",
    "pictures": "Pictures, films and volumes",
    "derivatives": "Derivatives in the loss, and two players",
    "relations": "Graphs, rays and long inputs",
}

PIECES: dict[str, dict[str, Piece]] = {
    "language": {
        "hf-bert": Piece(
            "BERT",
            "Eight transformer layers of width 512, masked language model, of transformers.",
            "Equal layers give a smooth curve: a quarter of the memory costs about a fifth more time, and the "
            "certified bound, less than 0.1 % below, says that no order of recomputation does noticeably better.",
        ),
        "hf-mixtral": Piece(
            "Mixtral",
            "A decoder with four experts in each layer, of transformers.",
            "Experts change little: half of the memory costs 5.5 %, where the dense BERT pays 5.4 %.",
        ),
        "hf-mamba2": Piece(
            "Mamba-2",
            "A state-space model in the reference code of transformers.",
            "Some steps cannot shrink: 70 % costs 6.5 %, half of the memory is proved impossible, and the proof "
            "takes less than a second.",
        ),
        "torch-long-convolution": Piece(
            "Long convolution",
            "Gated convolutions as long as the sequence, by Fourier transforms.",
            "Half of the memory costs 15 %, almost three times the price of BERT, and 35 % is proved impossible: "
            "what is cheap for one architecture is not for the next.",
        ),
        "torch-wavenet": Piece(
            "WaveNet",
            "Dilated gated convolutions, each of which adds to one sum.",
            "Plan and certified bound stay within 0.5 % of each other down to a quarter of the memory, which "
            "costs 22 %.",
        ),
        "hf-wav2vec2": Piece(
            "wav2vec 2.0",
            "Convolutions over waves, then transformer layers, of transformers.",
            "A cliff: 70 % costs 1.4 %, half costs 23 %, and 35 % is proved impossible. Draw the curve before you"
            " choose a budget.",
        ),
    },
    "pictures": {
        "hf-vit-msn": Piece(
            "ViT",
            "A vision transformer of six layers, of transformers.",
            "The first 30 points of memory cost 2.4 %, the last ten, from 35 to 25 %, twice that.",
        ),
        "timm-convnext_tiny": Piece(
            "ConvNeXt",
            "convnext_tiny of timm.",
            "The gap to the certified bound grows as the budget falls, from 0.2 % to 2.6 %: low budgets are where"
            " better plans may still be found.",
        ),
        "timm-dla34": Piece(
            "Deep layer aggregation",
            "dla34 of timm: features of all depths are joined in a tree.",
            "Low budgets tell architectures apart: at 35 % it pays 15 % where ConvNeXt pays 11 %, and 25 % is "
            "proved impossible.",
        ),
        "diffusers-autoencoder-kl": Piece(
            "Autoencoder of latent diffusion",
            "AutoencoderKL of diffusers.",
            "One of the cheapest of the gallery: half of the memory costs 3.1 %, a quarter 11 %.",
        ),
        "torch-nested-unet": Piece(
            "U-Net++",
            "A triangle of convolutions, each of which reads its whole row, with four losses.",
            "Nested skips do not prevent cheap plans: half costs 5.4 %. But a quarter is proved impossible.",
        ),
        "torch-volume-unet": Piece(
            "3-d U-Net",
            "Convolutions over volumes.",
            "At half of the memory the plan equals the claimed bound, and the certified one is 2.8 % below: a "
            "proof is what is missing, not a plan.",
        ),
        "torch-film-residual": Piece(
            "Residual network over films",
            "3-d convolutions in residual blocks.",
            "At 35 % there is neither a plan nor a proof that there is none: an open instance, to [compete "
            "on](../benchmarks/records.md).",
        ),
        "torch-contrast": Piece(
            "Contrast of two views",
            "One tower over two views of each picture; the loss compares all pairs.",
            "The loss waits for both views; still, half of the memory costs 7.3 % and a quarter 22 %.",
        ),
    },
    "derivatives": {
        "torch-burgers": Piece(
            "Burgers' equation",
            "A physics-informed network: derivatives of the network by time and place are in the loss.",
            "Half of the memory costs 8 %, a quarter 44 %; there the plan is 26 % above the certified bound, and "
            "the best one is not known.",
        ),
        "torch-forces": Piece(
            "Forces of atoms",
            "Energies from messages along bonds; forces are their derivatives, and both are fitted.",
            "A backward inside the forward is a graph like any other: half of the memory costs 9 %.",
        ),
        "torch-gradient-penalty": Piece(
            "Gradient penalty",
            "A critic whose slope is part of its loss.",
            "Cheap, then dear, then impossible: 2.3 % at half, 13 % at 35 %, no plan at 25 %, by proof.",
        ),
        "torch-adversaries": Piece(
            "Generator and critic in one step",
            "The gradient of the critic is reversed for the generator.",
            "At 35 % a solver claims a bound that almost meets the plan, 8 % above the certified one: claims show"
            " where a proof is worth growing (`remat prove`).",
        ),
        "torch-meta-learner": Piece(
            "Meta-learning",
            "Steps of gradient descent on a task are part of the forward.",
            "Unrolled optimization recomputes well: a quarter of the memory for 14 %.",
        ),
    },
    "relations": {
        "torch-messages": Piece(
            "Message passing",
            "States of nodes and edges, both updated layer by layer.",
            "Each step down has its price: 7 %, 14 %, 22 % and 34 % at the four budgets of the library.",
        ),
        "torch-graph-attention": Piece(
            "Graph attention",
            "Attention over edges, several heads, the states of all layers joined.",
            "States that are joined at the end can be recomputed too: half costs 6.3 %, a quarter 20 %.",
        ),
        "torch-latents": Piece(
            "Latents that read a long input",
            "A few latent vectors attend to a long input again and again.",
            "Half costs 13 %, and 35 % is proved impossible: ask for the lowest budget before you buy a larger "
            "input (`remat estimate`).",
        ),
        "torch-radiance": Piece(
            "Radiance field",
            "Colors and densities along rays, coarse and fine samples, summed to pixels.",
            "70 % costs 5 %, twice as much as BERT, and a quarter 37 %, with a certified bound of 21 %: better "
            "plans or better bounds are to be found.",
        ),
    },
}  # fmt: skip
"""By group and by the name of the graph in the library of instances."""
