"""Whether a network still lies in its flat tensors."""

from accel_rl.parallel import FlatParameters


def check_views(flat: FlatParameters) -> None:
    """Assert that the network's parameters and gradients are still views of the flat tensors."""
    parameters, gradients = flat.views(flat.parameter), flat.views(flat.gradient)
    for name, p in flat._parameters.items():
        for found, view in ((p, parameters[name]), (p.grad, gradients[name])):
            assert found is not None and found.data_ptr() == view.data_ptr(), name
            assert found.stride() == view.stride(), name
